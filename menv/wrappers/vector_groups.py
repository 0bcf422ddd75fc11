"""Groups of agents in worlds that step as arrays: `VectorMultiAgentEnv.with_agent_groups` creates `VectorGroups`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add, and_, or_
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import AgentId
from menv.env_calls import state_rows
from menv.errors import ContractError
from menv.vector_multi_agent_env import VectorMultiAgentEnv
from menv.wrappers.group_agents import alike, checked_groups


class VectorGroups(VectorMultiAgentEnv):
    """Makes one agent of each group, whose members act and end together; agents without a group stay unchanged.

    Observations and actions of a group are Tuples, and its reward is the sum of its members' rewards.

    Attributes:
        env: The worlds with single agents.
        groups: `{group: [member, ...]}`.
    """

    def __init__(
        self,
        env: VectorMultiAgentEnv,
        groups: Mapping[Any, Sequence[Any]] | None = None,
        *,
        state: gym.Space[Any] | None = None,
    ) -> None:
        """Group the agents of `env`; None groups agents with equal spaces. ConfigError if the groups are wrong.

        With the space `state` groups observe the state of their world behind their members.
        """
        self.env, self.num_envs, self._agents = env, env.num_envs, list(env.possible_agents)
        seen, act = env.observation_spaces, env.action_spaces
        if groups is None:
            groups = alike({agent: (seen[agent], act[agent]) for agent in self._agents})
        self.groups = checked_groups(groups, self._agents)
        self._has_state = state is not None
        more = [] if state is None else [state]
        self.observation_spaces = self._grouped(seen, lambda parts: gym.spaces.Tuple([*parts, *more]))
        self.action_spaces = self._grouped(act, gym.spaces.Tuple)
        self.possible_agents = [*self.observation_spaces]
        # Whether the worlds' columns are arrays [E, A, ...].
        self._in_arrays = False

    def reset(self, *, seed: int | None = None) -> tuple[Any, Mapping[str, Any]]:
        obs, infos = self.env.reset(seed=seed)
        self._in_arrays = not isinstance(obs, Mapping)
        return self._seen(obs), self._infos(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        chosen = dict(actions)
        for group, members in self.groups.items():
            chosen.update(zip(members, chosen.pop(group), strict=True))
        given = np.stack([chosen[agent] for agent in self._agents], 1) if self._in_arrays else chosen
        obs, rewards, terminated, truncated, infos = self.env.step(given)
        ends = self._by_agent(terminated), self._by_agent(truncated)
        self._grouped({agent: (ends[0][agent] != 0) | (ends[1][agent] != 0) for agent in ends[0]}, _together)
        return (
            self._seen(obs),
            self._grouped(rewards, lambda parts: reduce(add, parts)),
            self._grouped(terminated, lambda flags: reduce(and_, flags)),
            self._grouped(truncated, lambda flags: reduce(or_, flags)),
            self._infos(infos),
        )

    def state(self) -> Any:
        return self.env.state()

    def render(self, index: int = 0) -> Any:
        return self.env.render(index)

    def close(self) -> None:
        self.env.close()

    def _infos(self, infos: Mapping[str, Any]) -> Mapping[str, Any]:
        found = dict(infos)
        if infos.get("final_obs") is not None:
            found["final_obs"] = self._seen(infos["final_obs"], infos)
        if infos.get("acting") is not None:
            found["acting"] = self._grouped(infos["acting"], _together)
        return found

    def _seen(self, obs: Any, finals: Mapping[str, Any] | None = None) -> dict[AgentId, Any]:
        """Return the observations of groups, with the states now or the last ones of the infos `finals`."""
        more = [state_rows(self.env, finals)] if self._has_state else []
        return self._grouped(obs, lambda parts: dict(enumerate([*parts, *more])))

    def _by_agent(self, column: Any) -> Mapping[AgentId, Any]:
        if isinstance(column, Mapping):
            return column
        return {agent: column[:, place] for place, agent in enumerate(self._agents)}

    def _grouped(self, column: Any, joined: Callable[[list[Any]], Any]) -> dict[AgentId, Any]:
        """Return what `joined` makes of the members of each group, and the column's entries of other agents."""
        by_agent = dict(self._by_agent(column))
        found = {
            group: joined([by_agent.pop(member) for member in members])
            for group, members in self.groups.items()
        }
        return found | by_agent


def _together(flags: list[Any]) -> Any:
    """Return the flags [E] of the first member; ContractError unless the flags of all members are equal."""
    if any(bool((one != flags[0]).any()) for one in flags[1:]):
        raise ContractError(
            "VectorGroups: members of a group do not act or end together; train these agents with PPO, "
            "or write a MultiAgentEnv"
        )
    return flags[0]
