"""What a run makes of an environment of several agents: a team that is paid together, groups, and the global state."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv.base_env import ALL, GLOBAL_STATE
from menv.env_calls import state_row, state_space
from menv.errors import ConfigError
from menv.multi_agent_env import AgentDict, StepDicts
from menv.registry import env_kind
from menv.wrappers.common import MultiAgentWrapper
from menv.wrappers.group_agents import GroupAgentsWrapper, VectorGroups


def as_team(env: Any, how: str | None, *, grouped: bool = False, with_state: bool = False) -> Any:
    """Return an environment in the form that a run needs, with `run_state_size` where the run uses its state.

    Args:
        env: The environment.
        how: Pays each agent the "sum" or the "mean" of the team's rewards; None changes nothing.
        grouped: Agents with equal spaces become one group, which observes the state, too; `run_groups` has the members
            of each. Environments without `possible_agents` do not change, nor do environments whose agents have
            Tuple actions, which are groups already.
        with_state: Infos have the state.

    Raises:
        ConfigError: The environment is none of several agents, and `how` is given.
    """
    kind = env_kind(env)
    if kind in ("multi_agent", "vector_agents"):
        form = GroupAgentsWrapper if kind == "multi_agent" else VectorGroups
        grouped = grouped and bool(env.possible_agents) and not _has_groups(env)
        space = state_space(env) if grouped or with_state else None
        if grouped:
            env = form(env, None, state=space)
            env.run_groups = env.groups
        elif space is not None and kind == "multi_agent":
            env = StateInfos(env)
        if space is not None:
            env.run_state_size = space.shape[0]
        if how is not None:
            # Adapters read it.
            env.common_reward = how
    elif how is not None:
        raise ConfigError(
            f"common_reward: {how!r} for a {type(env).__name__}, expected a MultiAgentEnv or a "
            "VectorMultiAgentEnv, whose agents are a team; leave it out"
        )
    return env


def _has_groups(env: Any) -> bool:
    space_of = getattr(env, "get_action_space", None) or env.action_spaces.__getitem__
    return any(isinstance(space_of(agent), gym.spaces.Tuple) for agent in env.possible_agents)


class StateInfos(MultiAgentWrapper):
    """Adds the state to the info of each agent, so that it stands with the observation of the same moment."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        result: Any = super().reset(seed=seed, options=options)
        if not isinstance(result, tuple) or [type(part) for part in result] != [dict, dict]:
            # The adapter reports it.
            return result  # type: ignore[no-any-return]
        return result[0], self._with_state(result[1], result[0])

    def step(self, action_dict: AgentDict) -> StepDicts:
        result: Any = super().step(action_dict)
        if not isinstance(result, tuple | list) or [type(part) for part in result] != [dict] * 5:
            return result  # type: ignore[no-any-return]
        obs, rewards, terminateds, truncateds, infos = result
        over = terminateds.get(ALL) or truncateds.get(ALL)
        shown = {**obs, **terminateds, **truncateds, **dict.fromkeys(self.possible_agents if over else ())}
        return obs, rewards, terminateds, truncateds, self._with_state(infos, shown)

    def _with_state(self, infos: AgentDict, agents: AgentDict) -> AgentDict:
        state = {GLOBAL_STATE: state_row(self.env)}
        return {**infos, **{agent: {**infos.get(agent, {}), **state} for agent in agents if agent != ALL}}
