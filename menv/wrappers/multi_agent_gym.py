"""`MultiAgentGym`: a `gymnasium.Env` in which several agents act, as a `MultiAgentEnv`.

Level-based foraging and the robotic warehouse are such environments. They return tuples, lists or dicts of one value
for each agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from menv.base_env import ALL, COMMON, AgentId
from menv.env_calls import as_flag, close_env, reset_env, returned
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.wrappers.group_agents import placeholder
from menv.wrappers.pettingzoo_base import check_answers


class MultiAgentGym(MultiAgentEnv):
    """A gymnasium-style environment with a space for each agent, in a Tuple, a list or a Dict.

        register_env("foraging", lambda context: MultiAgentGym(gym.make("Foraging-8x8-2p-3f-v3")))

    - The agents of a Dict are its keys. The agents of a Tuple or list are `"agent_0"`, `"agent_1"`, ..., or `agents`.
    - Observations, rewards, flags and infos may each be a dict by agent, or a tuple, list or array of one for each
      possible agent.
    - A single reward goes to each agent that acted. A single flag ends the episode. Flags by agent end agents, and the
      episode with the last one: truncated if an agent was truncated in this step, otherwise terminated.
    - In a tuple or list an ended agent's entries are ignored until the next episode; the environment gets zeros as its
      action, or the nearest element of its space. In a dict the agents in the observations act next: agents may be left
      out, and may return.
    - An info that is not by agent belongs to the whole environment, `infos["__common__"]`.

    Args:
        env: The gymnasium environment.
        agents: Different ids for the entries of a Tuple or list.

    Raises:
        ConfigError: The spaces are not spaces of several agents, or `agents` do not match them.

    Attributes:
        env: The environment.
    """

    def __init__(self, env: Any, agents: Sequence[AgentId] | None = None) -> None:
        super().__init__()
        observed, acted = _spaces(env, "observation_space"), _spaces(env, "action_space")
        self._by_place = not isinstance(acted, Mapping)
        ids = _agent_names(observed, acted, agents)
        self.env = env
        self.possible_agents = ids
        self.observation_spaces = dict(zip(ids, _parts(observed, ids), strict=True))
        self.action_spaces = self._known = dict(zip(ids, _parts(acted, ids), strict=True))
        self.render_mode = getattr(env, "render_mode", None)
        # Set on the instance: the class attribute is shared by all environments.
        vars(self)["metadata"] = dict(getattr(env, "metadata", None) or self.metadata)
        self._running = False
        # The agents that act next, and the agents that have ended in this episode.
        self._acting: list[AgentId] = []
        self._ended: set[AgentId] = set()

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the environment in a list, or as `{0: env}`."""
        return {0: self.env} if as_dict else [self.env]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new episode.

        Raises:
            ContractError: The environment returned something else than observations by agent and an info.
        """
        obs, info = reset_env(self.env, "in MultiAgentGym", seed, options)
        by_agent = self._by_agent(obs, "reset", "observations")
        self.agents, self._running = list(by_agent), True
        self._acting, self._ended = list(by_agent), set()
        return by_agent, self._infos(info, by_agent, "reset")

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Take one step with the actions of the agents in the last `obs`.

        Raises:
            CallOrderError: No episode is running.
            ContractError: The actions are not exactly the ones of these agents, or the environment returned values of
                another form.
        """
        if not self._running:
            raise CallOrderError(
                'MultiAgentGym.step: no episode is running, expected reset first and again after "__all__"; call reset'
            )
        check_answers("MultiAgentGym.step", self._acting, action_dict)
        result = returned(self.env.step(self._actions(action_dict)), 5, self._where("step"))
        obs, rewards = self._by_agent(result[0], "step", "observations"), self._rewards(result[1])
        terminateds, truncateds = (self._flags(flags) for flags in result[2:4])
        over = self._end_agents(obs, terminateds, truncateds)
        terminateds[ALL], truncateds[ALL] = over
        if any(over):
            self.agents, self._running = [], False
        self._acting = [agent for agent in obs if agent in self.agents]
        return obs, rewards, terminateds, truncateds, self._infos(result[4], obs, "step")

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        close_env(self.env)

    def _actions(self, answers: AgentDict) -> Any:
        if not self._by_place:
            return answers
        return tuple(
            answers[agent] if agent in answers else placeholder(space, f"{self._where('step')}: {agent!r}")
            for agent, space in self._known.items()
        )

    def _end_agents(self, obs: AgentDict, terminateds: AgentDict, truncateds: AgentDict) -> tuple[bool, bool]:
        """End agents, drop repeated ends, and return the episode's terminated and truncated flags."""
        for_all = terminateds.pop(ALL, False), truncateds.pop(ALL, False)
        flagged = {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag}
        # Entries of a tuple are never empty. In a dict an agent without a flag is alive, also after an end.
        stale = self._ended if self._by_place else self._ended & flagged
        for agent in stale:
            for values in (obs, terminateds, truncateds):
                values.pop(agent, None)
        self._ended = (self._ended - obs.keys()) | flagged
        self.agents = [agent for agent in dict.fromkeys((*self.agents, *obs)) if agent not in self._ended]
        over = bool(flagged - stale) and not self.agents
        if any(for_all) or not over:
            return for_all
        truncated = any(truncateds.values())
        return not truncated, truncated

    def _by_agent(self, values: Any, method: str, what: str) -> AgentDict:
        if isinstance(values, Mapping):
            self._check_known(values, method, what)
            return dict(values)
        if _length(values) != len(self.possible_agents):
            raise ContractError(
                f"{self._where(method)} returned {what} that are {_form_of(values)}, expected a dict by agent or one "
                f"for each of {len(self.possible_agents)} agents; fix what it returns"
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _check_known(self, values: Mapping[Any, Any], method: str, what: str) -> None:
        unknown = sorted(repr(agent) for agent in values if agent not in self._known and agent != ALL)
        if unknown:
            raise ContractError(
                f"{self._where(method)} returned {what} of {', '.join(unknown[:8])}, expected some of "
                f"{', '.join(map(repr, self.possible_agents[:8]))}; check its keys"
            )

    def _rewards(self, rewards: object) -> AgentDict:
        """Return rewards by agent; each agent that acted gets a single reward."""
        if _length(rewards) is None and not isinstance(rewards, Mapping):
            return dict.fromkeys(self._acting, rewards)
        return self._by_agent(rewards, "step", "rewards")

    def _flags(self, flags: object) -> AgentDict:
        """Return flags by agent; a single flag is the one of `"__all__"`."""
        if _length(flags) is None and not isinstance(flags, Mapping):
            return {ALL: as_flag(flags, f"{self._where('step')}: terminated or truncated")}
        by_agent, where = self._by_agent(flags, "step", "flags"), self._where("step")
        return {agent: as_flag(flag, f"{where}: the flag of {agent!r}") for agent, flag in by_agent.items()}

    def _infos(self, info: Any, obs: AgentDict, method: str) -> AgentDict:
        by_agent: Any = info
        if not isinstance(info, Mapping) and _length(info) == len(self.possible_agents):
            by_agent = dict(zip(self.possible_agents, info, strict=True))
        if not isinstance(by_agent, Mapping):
            raise ContractError(
                f"{self._where(method)} returned an info that is {_form_of(info)}, expected a dict, or one for each "
                "agent; return {} where there is no info"
            )
        if not by_agent:
            return {}
        if all(agent in self._known and isinstance(own, dict) for agent, own in by_agent.items()):
            return {agent: own for agent, own in by_agent.items() if agent in obs}
        return {COMMON: dict(by_agent)}

    def _where(self, method: str) -> str:
        return f"MultiAgentGym.{method}: {type(getattr(self.env, 'unwrapped', self.env)).__name__}"


def _spaces(env: object, name: str) -> Mapping[Any, Any] | Sequence[Any]:
    space = getattr(env, name, None)
    parts: Any = space.spaces if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple) else space
    several = isinstance(parts, Mapping | list | tuple) and len(parts) > 0
    each = parts.values() if isinstance(parts, Mapping) else parts
    if not several or not all(isinstance(one, gym.Space) for one in each or ()):
        raise ConfigError(
            f"MultiAgentGym: {name} of {type(env).__name__} is {_shortened(space)}, expected a Tuple, a list or a Dict "
            "of one space for each agent; wrap games of PettingZoo in PettingZooEnv or ParallelPettingZooEnv, and pass "
            "on an environment of one agent unchanged"
        )
    spaces: Mapping[Any, Any] | Sequence[Any] = parts
    return spaces


def _agent_names(observed: Any, acted: Any, agents: Sequence[AgentId] | None) -> list[AgentId]:
    if isinstance(observed, Mapping) != isinstance(acted, Mapping) or len(observed) != len(acted):
        raise ConfigError(
            f"MultiAgentGym: {len(observed)} observation spaces in a {type(observed).__name__} and {len(acted)} action "
            f"spaces in a {type(acted).__name__}, expected the same agents in both; fix the spaces"
        )
    named = list(acted) if isinstance(acted, Mapping) else [f"agent_{place}" for place in range(len(acted))]
    if isinstance(acted, Mapping) and set(observed) != set(acted):
        raise ConfigError(
            f"MultiAgentGym: observation spaces of {list(observed)[:8]} and action spaces of {named[:8]}, expected the "
            "same agents in both; fix the spaces"
        )
    if agents is None:
        return named
    given = list(agents)
    fits = len(set(given)) == len(given) == len(named) and (not isinstance(acted, Mapping) or given == named)
    if isinstance(agents, str) or not fits:
        raise ConfigError(
            f"MultiAgentGym: agents are {given[:8]}, expected {len(named)} different names; leave them out to get "
            f"{named[:8]}"
        )
    return given


def _parts(spaces: Any, ids: list[AgentId]) -> list[gym.Space[Any]]:
    return [spaces[agent] for agent in ids] if isinstance(spaces, Mapping) else list(spaces)


def _length(values: Any) -> int | None:
    """Return the length of a tuple, list or array, None for a dict or a single value."""
    if isinstance(values, Mapping | str | bytes):
        return None
    try:
        return len(values)
    except TypeError:
        return None


def _form_of(values: object) -> str:
    """Return the type and size of a value without its content."""
    places = _length(values)
    return f"a {type(values).__name__}" + (f" of {places}" if places is not None else "")


def _shortened(space: object) -> str:
    return " ".join(str(space).split())[:120]
