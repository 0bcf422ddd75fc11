"""`MultiAgentEnv`: the base class of multi-agent environments, with dicts keyed by agent id.

Users subclass it; `menv.envs` and `menv.wrappers` hold subclasses. `menv.adapters.multi_agent` turns copies of one into
a `BaseEnv`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from menv.base_env import AgentId, convert_env, innermost
from menv.errors import ContractError

AgentDict: TypeAlias = dict[Any, Any]
"""`{agent_id: value}`; ids and values are the environment's own."""
StepDicts: TypeAlias = tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]


class MultiAgentEnv:
    """An environment in which several agents act simultaneously, turn-based, or in any mixture.

    Write `reset` and `step`, name the agents, declare the spaces. The contract:

    - Every agent in `obs` must act next, unless its flag (or `"__all__"`) is set: then the observation is its last one.
      No other agent acts. An empty `obs` is followed by `step({})`.
    - `rewards` may name any agent at any step; they add up until that agent's next observation or its end.
    - `terminateds` and `truncateds` hold a flag per agent (a missing one is False) and always `"__all__"`, which ends
      the episode for all agents.
    - Agents may appear late, pause, die early, and return; an agent that returns begins a new trajectory.
    - `infos` names agents of `obs` only. What concerns the whole environment belongs under `"__common__"`, for
      callbacks: `episode.last_info_for("__common__")`. An info `{"training_enabled": False}` excludes the agent's
          trajectory from
      training, until a later info of it says True.

    You declare spaces in one of four ways: by agent (`observation_spaces`, a dict or a `gymnasium.spaces.Dict`), as a
    `gymnasium.spaces.Dict` keyed by agent id (`observation_space`), as one space that all agents share
    (`observation_space`), or by a method `observation_space(agent_id)` or `observation_spaces(agent_id)`. The same
    holds for actions. Attributes may be properties. Spaces and agents that are known only after the first `reset` are
    read then.

    Every instance has its own `possible_agents` and `agents`, even if the subclass declares them on the class or never
    calls `super().__init__()`. It is no `gymnasium.Env`.

    Attributes:
        possible_agents: All agents that may ever appear.
        agents: The agents that are alive now.
        observation_spaces: Spaces by agent id, or None.
        action_spaces: Spaces by agent id, or None.
        observation_space: One space for all agents, a Dict space keyed by agent id, or None.
        action_space: One space for all agents, a Dict space keyed by agent id, or None.
        metadata: `"render_modes"` and anything else that describes the environment.
        render_mode: What `render` returns.
    """

    possible_agents: list[Any]
    agents: list[Any]
    observation_spaces: Mapping[Any, gym.Space[Any]] | None = None
    action_spaces: Mapping[Any, gym.Space[Any]] | None = None
    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    render_mode: str | None = None
    _np_random: np.random.Generator | None = None
    _agent_ids: Any
    unwrapped = property(innermost)
    to_base_env = convert_env

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        env = super().__new__(cls)
        for name in ("possible_agents", "agents"):
            declared = getattr(cls, name, ())
            # Anything else, such as a property, belongs to the subclass.
            if isinstance(declared, list | tuple | set | frozenset):
                setattr(env, name, list(declared))
        # RLlib environments may add their ids to this set.
        if not hasattr(cls, "_agent_ids"):
            env._agent_ids = set()
        return env

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new episode.

        A subclass may call `super().reset(seed=seed)`, as with a `gymnasium.Env`, to seed `np_random`.

        Args:
            seed: Makes the episode reproducible; None leaves the randomness alone.
            options: Options of the environment.

        Returns:
            `(obs, infos)`, both keyed by agent id; the agents in `obs` act first.
        """
        if type(self).reset is MultiAgentEnv.reset:
            raise ContractError(_not_written(self, "reset", "(obs, infos)"))
        if seed is not None:
            self._np_random = seeding.np_random(seed)[0]
        return {}, {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Advance the environment by one env step.

        Args:
            action_dict: One action for each agent of the last `obs`; empty if there was none.

        Returns:
            `(obs, rewards, terminateds, truncateds, infos)`, each keyed by agent id.
        """
        raise ContractError(_not_written(self, "step", "(obs, rewards, terminateds, truncateds, infos)"))

    def state(self) -> Any:
        """Return the state of the whole environment as an array, as PettingZoo's environments do.

        Centralized critics (`critic_obs="state"`) and the mixing network of QMIX learn from it; agents never see it.
        """
        raise NotImplementedError

    def render(self) -> Any:
        """Return a picture of the current state in the form that `render_mode` names."""
        return None

    def close(self) -> None:
        """Release all resources; may be called more than once."""

    @property
    def np_random(self) -> np.random.Generator:
        """The generator that `super().reset(seed=seed)` seeds; a randomly seeded one before that."""
        if self._np_random is None:
            self._np_random = seeding.np_random()[0]
        return self._np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._np_random = value

    @property
    def num_agents(self) -> int:
        """Number of agents that are alive now, or the number that the subclass has set."""
        return int(self.__dict__.get("num_agents", len(self.agents)))

    @num_agents.setter
    def num_agents(self, value: int) -> None:
        self.__dict__["num_agents"] = value

    @property
    def max_num_agents(self) -> int:
        """Number of agents that may ever appear."""
        return len(self.possible_agents)

    def get_agent_ids(self) -> set[AgentId]:
        """Return all known agents: possible, alive, or with a space."""
        return set(_known_agents(self))

    def get_observation_space(self, agent_id: AgentId) -> gym.Space[Any]:
        """Return the observation space of one agent.

        `observation_spaces` decides if it is set; then a Dict `observation_space` that holds the agent id; then
        `observation_space` as the one that all agents share.

        Raises:
            ContractError: No space is declared for this agent.
        """
        return _space_of(self, "observation", agent_id)

    def get_action_space(self, agent_id: AgentId) -> gym.Space[Any]:
        """Return the action space of one agent, found like its observation space.

        Raises:
            ContractError: No space is declared for this agent.
        """
        return _space_of(self, "action", agent_id)

    def observation_space_contains(self, x: Mapping[AgentId, Any]) -> bool:
        """Return whether every observation of `{agent_id: obs}` is in its agent's space."""
        return _all_contained(self.get_observation_space, x)

    def action_space_contains(self, x: Mapping[AgentId, Any]) -> bool:
        """Return whether every action of `{agent_id: action}` is in its agent's space."""
        return _all_contained(self.get_action_space, x)

    def observation_space_sample(self, agent_ids: Iterable[AgentId] | None = None) -> AgentDict:
        """Return a random observation for each of `agent_ids`, by default for all known agents."""
        ids = _known_agents(self) if agent_ids is None else agent_ids
        return {agent_id: self.get_observation_space(agent_id).sample() for agent_id in ids}

    def action_space_sample(self, agent_ids: Iterable[AgentId] | None = None) -> AgentDict:
        """Return a random action for each of `agent_ids`, by default for all known agents."""
        ids = _known_agents(self) if agent_ids is None else agent_ids
        return {agent_id: self.get_action_space(agent_id).sample() for agent_id in ids}

    def with_agent_groups(
        self,
        groups: Mapping[Any, Sequence[Any]] | None = None,
        obs_space: Mapping[Any, gym.Space[Any]] | gym.Space[Any] | None = None,
        act_space: Mapping[Any, gym.Space[Any]] | gym.Space[Any] | None = None,
    ) -> MultiAgentEnv:
        """Return this environment with each group of agents seen as one agent.

        `menv.wrappers.GroupAgentsWrapper` documents the observations, actions, rewards and ends of a group.

        Args:
            groups: Member ids by group id, such as `{"team": ["agent_1", "agent_2"]}`; None groups the
                `possible_agents` with equal spaces.
            obs_space: Tuple space of all groups, or by group; None uses the members' spaces.
            act_space: Tuple space of all groups, or by group; None uses the members' spaces.

        Raises:
            ConfigError: The groups or spaces do not fit the environment.
            ContractError: A member declares no space.
        """
        from menv.wrappers.group_agents import GroupAgentsWrapper

        return GroupAgentsWrapper(self, groups, obs_space, act_space)


def _not_written(env: MultiAgentEnv, method: str, returned: str) -> str:
    name = type(env).__name__
    return (
        f"{name}.{method}: the method is missing, expected one that returns {returned}; "
        f"write `{method}` in {name}"
    )


def _known_agents(env: MultiAgentEnv) -> list[AgentId]:
    """Return every agent id that `env` shows anywhere, once, the possible ones first."""
    known: dict[AgentId, None] = dict.fromkeys(env.possible_agents)
    # In environments written for RLlib `agents` often holds one environment or object for each of `_agent_ids`.
    classic: Iterable[AgentId] | None = getattr(env, "_agent_ids", None)
    more: Iterable[Iterable[AgentId] | None] = (
        classic or [agent for agent in env.agents if not isinstance(agent, gym.Env)],
        # A property may know nothing before the first reset.
        getattr(env, "observation_spaces", None),
        getattr(env, "action_spaces", None),
    )
    for ids in more:
        known.update(dict.fromkeys(() if callable(ids) else ids or ()))
    return list(known)


def _space_of(env: MultiAgentEnv, kind: str, agent_id: AgentId) -> gym.Space[Any]:
    by_agent: Any = getattr(env, f"{kind}_spaces")
    shared: Any = getattr(env, f"{kind}_space")
    method = by_agent if callable(by_agent) else shared
    if callable(method) and (by_agent is None or method is by_agent):
        try:
            asked: gym.Space[Any] = method(agent_id)
        except KeyError as error:
            raise ContractError(_no_space(env, kind, agent_id, _known_agents(env))) from error
        return asked
    if by_agent is not None:
        # What is in a Dict space is its elements, not its keys.
        spaces: Mapping[AgentId, gym.Space[Any]] = getattr(by_agent, "spaces", by_agent)
        if agent_id in spaces:
            return spaces[agent_id]
        raise ContractError(_no_space(env, kind, agent_id, spaces))
    if isinstance(shared, gym.spaces.Dict):
        inner: Mapping[Any, gym.Space[Any]] = shared.spaces
        if agent_id in inner:
            return inner[agent_id]
        # A Dict that names one agent is keyed by agents; any other Dict is what they all observe.
        if any(known in inner for known in _known_agents(env)):
            raise ContractError(_no_space(env, kind, agent_id, inner))
    if shared is None:
        raise ContractError(_no_space(env, kind, agent_id, _known_agents(env)))
    return shared  # type: ignore[no-any-return]


def _no_space(env: MultiAgentEnv, kind: str, agent_id: AgentId, known: Iterable[Any]) -> str:
    names = ", ".join(repr(one) for one in known) or "none"
    name = type(env).__name__
    return (
        f"{name}.get_{kind}_space: no {kind} space for agent {agent_id!r} (known agents: {names}), "
        f"expected one in `{kind}_spaces`, or an `{kind}_space` that agents share; "
        f"declare it in {name}.__init__"
    )


def _all_contained(space_of: Callable[[AgentId], gym.Space[Any]], elements: Mapping[AgentId, Any]) -> bool:
    try:
        return all(space_of(agent_id).contains(x) for agent_id, x in elements.items())
    except (ContractError, KeyError):
        return False
