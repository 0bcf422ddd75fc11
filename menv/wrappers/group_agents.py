"""Agent grouping: several agents become one, with Tuple observations and Tuple actions.

`env.with_agent_groups(...)` creates a `GroupAgentsWrapper`, or `VectorGroups` for worlds that step as arrays. A group
is mapped to a policy like any other agent. `as_team` makes what a run needs: groups, common rewards, the global state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from operator import add, and_, or_
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, COMMON, GLOBAL_STATE, AgentId
from menv.env_calls import as_flag, as_reward, state_row, state_rows, state_space
from menv.episode import MEMBER_REWARDS
from menv.errors import ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.registry import env_kind
from menv.spaces import GroupObs, built, flat_mask, open_mask, own_copy
from menv.vector_env import VectorMultiAgentEnv
from menv.wrappers.common import MultiAgentWrapper

MASK_KEY = "action_mask"
STATE_KEY = "state"
"""The entry of a Dict observation that holds the global state, the same for all members."""


class AgentGroup:
    """One group within the running episode of the environment.

    Attributes:
        members: Ids of the members, in the order of all tuples.
        space: The Tuple space of the observations.
        action_space: That of the actions.
        acting: The members that act next.
        alive: Whether the group has been observed and has not ended.
    """

    def __init__(
        self,
        group_id: AgentId,
        members: Sequence[AgentId],
        space: gym.spaces.Tuple[Any],
        action_space: gym.spaces.Tuple[Any],
        state: Callable[[], Any] | None,
    ) -> None:
        self.group_id = group_id
        self._state = state
        self.members = tuple(members)
        self.space, self.action_space = space, action_space
        self.begin()

    def begin(self) -> None:
        """Start an episode."""
        self.acting: list[AgentId] = []
        self.alive = False
        # Whether the group has ended and was not observed since.
        self._has_ended = False
        self._appeared: set[AgentId] = set()
        # The members that have ended, with True where the end was a truncation.
        self._ended: dict[AgentId, bool] = {}
        self._individual_rewards: dict[AgentId, float] = {}
        self._individual_infos: AgentDict = {}
        # The last `training_enabled` of the members' infos since the group began.
        self._training_enabled: dict[AgentId, bool] = {}
        # The sum of each member's rewards since the group began.
        self._episode_rewards: dict[AgentId, float] = {}

    def unpack(self, actions: Any) -> AgentDict:
        """Return `{member: action}` for the acting members; `actions` has one for each member."""
        if not self.acting:
            raise ContractError(
                f"GroupAgentsWrapper.step: got actions for group {self.group_id!r}, which does not wait, expected "
                "none for it; answer the agents and groups of the last obs"
            )
        if not isinstance(actions, Sequence | np.ndarray) or len(actions) != len(self.members):
            raise ContractError(
                f"GroupAgentsWrapper.step: the actions of group {self.group_id!r} are {actions!s:.80}, expected "
                f"{len(self.members)}, one for each of {_listed(self.members)}; return an element of its action space"
            )
        by_member = dict(zip(self.members, actions, strict=True))
        return {member: by_member[member] for member in self.acting}

    def add_step(self, result: StepDicts, out: StepDicts) -> None:
        """Read the environment's five dicts and add the group's entries to `out`."""
        obs, rewards, terminateds, truncateds, infos = result
        over = bool(terminateds[ALL] or truncateds[ALL])
        seen = [member for member in self.members if member in obs]
        self._appeared.update(seen)
        for member in seen:
            # A member that is observed again is alive again, unless its flag is set.
            self._ended.pop(member, None)
        if len(terminateds) > 1 or len(truncateds) > 1:
            for member in self.members:
                if terminateds.get(member) or truncateds.get(member):
                    self._ended.setdefault(member, not terminateds.get(member))
        self.acting = [] if over else [member for member in seen if member not in self._ended]
        self._check_together()
        self._add_rewards(rewards, out[1])
        if infos:
            self._read_infos(infos)
        gone = len(self._ended) == len(self.members)
        # A group that ends in its first step is reported too.
        ends = (self.alive and (over or gone)) or (gone and bool(seen))
        truncated = bool(truncateds[ALL]) and not terminateds[ALL]
        cut = any(self._ended.get(member, truncated) for member in self.members) if ends else None
        if self.acting or (ends and seen):
            self._add_obs(obs, out, cut)
        if cut is not None:
            self._end_group(cut, out)

    def _check_together(self) -> None:
        idle = self._appeared - self._ended.keys() - {*self.acting}
        if self.acting and idle:
            raise ContractError(
                f"GroupAgentsWrapper: group {self.group_id!r} has observations for {_listed(self.acting)} and none for "
                f"{_listed(sorted(idle, key=repr))}, expected one for each living member; group "
                "only agents that act at the same time"
            )

    def _add_rewards(self, rewards: AgentDict, out: AgentDict) -> None:
        """Add the sum of the members' rewards to `out`, and record each member's."""
        where = f"GroupAgentsWrapper.step: in group {self.group_id!r}, the reward of "
        rewards_now = {
            member: as_reward(rewards[member], f"{where}{member!r}")
            for member in self.members
            if member in rewards
        }
        if not rewards_now:
            return
        out[self.group_id] = math.fsum(rewards_now.values())
        # Rewards between the group's end and its return belong to neither episode.
        if self.acting or not self._has_ended:
            for sums in (self._individual_rewards, self._episode_rewards):
                for member, reward in rewards_now.items():
                    sums[member] = sums.get(member, 0.0) + reward

    def _read_infos(self, infos: AgentDict) -> None:
        member_infos = {member: infos[member] for member in self.members if member in infos}
        self._individual_infos.update(member_infos)
        for member, info in member_infos.items():
            if isinstance(info, Mapping) and "training_enabled" in info:
                whose = f"group {self.group_id!r}, member {member!r}: info['training_enabled']"
                self._training_enabled[member] = as_flag(info["training_enabled"], whose)

    def _add_obs(self, obs: AgentDict, out: StepDicts, cut: bool | None) -> None:
        self.alive, self._has_ended = True, False
        absent = {place for place, member in enumerate(self.members) if self._is_absent(member, obs, cut)}
        parts = [self._member_obs(place, obs, place in absent) for place in range(len(self.members))]
        if self._state is not None:
            parts.append(self._state())
        out[0][self.group_id] = GroupObs.of(parts, absent) if absent else tuple(parts)
        out[4][self.group_id] = self._info(list(self.acting))
        self._individual_rewards, self._individual_infos = {}, {}

    def _info(self, acting: list[AgentId]) -> dict[str, Any]:
        """Return the group's info dict; one member without training excludes the group."""
        info: dict[str, Any] = {"individual_rewards": self._individual_rewards}
        info.update(individual_infos=self._individual_infos, acting=acting)
        if self._training_enabled:
            info["training_enabled"] = all(self._training_enabled.values())
        return info

    def _end_group(self, truncated: bool, out: StepDicts) -> None:
        out[2][self.group_id], out[3][self.group_id] = not truncated, truncated
        self.alive, self._has_ended = False, True
        # Also without an observation.
        out[4].setdefault(self.group_id, self._info([]))[MEMBER_REWARDS] = self._episode_rewards
        self._episode_rewards, self._training_enabled = {}, {}
        # A later episode of the group does not inherit truncations.
        self._ended = dict.fromkeys(self._ended, False)
        self._individual_rewards, self._individual_infos = {}, {}

    def _is_absent(self, member: AgentId, obs: AgentDict, cut: bool | None) -> bool:
        # `cut` is None while the group continues. Members that end together with it have final observations; but values
        # after a truncation are values of members that have not terminated.
        is_over = member in self._ended and (cut is None or (cut and not self._ended[member]))
        return member not in obs or is_over

    def _member_obs(self, place: int, obs: AgentDict, absent: bool) -> Any:
        """Return a member's observation; masks of members that do not act allow an action, which is ignored."""
        member = self.members[place]
        if not absent:
            return obs[member] if member in self.acting else with_open_mask(obs[member])
        where = f"group {self.group_id!r}, member {member!r}"
        shown = placeholder(self.space.spaces[place], where, self.action_space.spaces[place])
        if isinstance(shown, dict) and STATE_KEY in shown:
            # The global state continues after members end.
            for other in self.members:
                if isinstance(obs.get(other), dict) and STATE_KEY in obs[other]:
                    return {**shown, STATE_KEY: own_copy(obs[other][STATE_KEY])}
        return shown


def with_open_mask(obs: object) -> Any:
    """Return an observation in which a mask that allows nothing allows everything."""
    if isinstance(obs, dict) and MASK_KEY in obs and not np.any(flat_mask(obs[MASK_KEY])):
        return {**obs, MASK_KEY: open_mask(obs[MASK_KEY])}
    return obs


def placeholder(space: gym.Space[Any], where: str, actions: gym.Space[Any] | None = None) -> Any:
    """Return the element of `space` nearest to zeros.

    An entry `"action_mask"` of a Dict allows the first of Discrete `actions`, and everything of others.
    """
    spaces = gym.spaces
    if isinstance(space, spaces.Dict):
        most = 1 if isinstance(actions, spaces.Discrete) else None
        return {
            key: built(part, lambda _, leaf: _first_flags(leaf, most))
            if key == MASK_KEY
            else placeholder(part, f"{where}[{key!r}]")
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(placeholder(part, f"{where}[{i}]") for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if isinstance(space, spaces.Discrete):
        return space.start
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.copy()
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype)
    raise ContractError(
        f"{where}: has not appeared yet and {space} has no blank element, expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, Dict or Tuple; let all members of a group appear at the same time"
    )


def _first_flags(mask: gym.Space[Any], most: int | None) -> Any:
    flags = np.zeros(mask.shape or (), mask.dtype)
    flags.reshape(-1)[:most] = 1
    return flags


def _listed(members: Sequence[AgentId]) -> str:
    return ", ".join(map(repr, members[:8])) + (", ..." if len(members) > 8 else "")


GroupSpaces: TypeAlias = Mapping[Any, gym.Space[Any]] | gym.Space[Any] | None


class GroupAgentsWrapper(MultiAgentEnv):
    """Makes one agent of each group; agents without a group stay unchanged.

    - The observation of a group is the tuple of its members' observations, its action a sequence of
      their actions, both in the order in which the group lists them.
    - All living members act at the same time. A member that is not observed, or has ended, is absent: it has zeros, or
      what is nearest to zeros in its space. An `"action_mask"` allows its first Discrete action alone, and an entry
      `"state"` of a Dict, the global state, is the one of the other members. Its actions are ignored: the environment
      gets the actions of `infos[group]["acting"]` only. Members that end together with the group show their final
      observations, except that a member that terminates is absent in the end of a group that is truncated.
      QMIX and VDN also know which members are absent (`menv.algorithms.qmix.network`).
    - The reward of a group is the sum of its members' rewards at that step, rewards of ended members included.
    - A group ends with its last member, or with the episode. Members that have yet to appear keep it alive. The end is
      a truncation if any member was truncated, else a termination. A member that returns continues the group's
      episode, or starts a new one.
    - `infos[group]` comes with each observation of the group. `"individual_rewards"` is `{member: reward}` since the
      previous observation, `"individual_infos"` has the members' infos, `"acting"` the members that act next. The info
      at the group's end also has each member's sum of rewards. Results report it under `agent_reward_*`, and the
      groups' own returns under `group_reward_*` too.
    - An info `{"training_enabled": False}` of one member excludes the group's trajectory from training, until a later
      info of that member has True.

    Values that break the contract of `MultiAgentEnv` are passed on unchanged; the adapter reports them.

    Attributes:
        env: The environment with single agents.
        groups: `{group: [member, ...]}`.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        groups: Mapping[Any, Sequence[Any]] | None = None,
        obs_space: GroupSpaces = None,
        act_space: GroupSpaces = None,
        *,
        state: gym.Space[Any] | None = None,
    ) -> None:
        """Group the agents of `env`.

        Args:
            env: The environment; it is stepped through this wrapper only.
            groups: Member ids by group id, which becomes an agent id; None groups the `possible_agents` with equal
                spaces.
            obs_space: Tuple space of the groups' observations: one for all groups, or a dict or Dict space by group
                id. Missing spaces are built from the members' own spaces.
            act_space: The same for the actions.
            state: Space of `state_row`, which groups then observe behind their members.

        Raises:
            ConfigError: A member is unknown or listed twice, a group is empty or has the id of an agent, a space does
                not fit, or `env` has groups already.
            ContractError: A member declares no space and none was given for its group.
        """
        super().__init__()
        if isinstance(env, GroupAgentsWrapper):
            raise ConfigError(
                "with_agent_groups: the environment has groups already, expected an environment without groups; list "
                "all groups in one call"
            )
        self.env = env
        known = list(dict.fromkeys([*env.possible_agents, *sorted(env.get_agent_ids(), key=repr)]))
        if groups is None:
            spaces = (
                (env.get_observation_space(one), env.get_action_space(one)) for one in env.possible_agents
            )
            groups = alike(dict(zip(env.possible_agents, spaces, strict=True)))
        self.groups = checked_groups(groups, known)
        self._group_of = {member: group for group, members in self.groups.items() for member in members}
        alone = [agent for agent in known if agent not in self._group_of]
        self.possible_agents = [*self.groups, *alone]
        self.observation_spaces = self._spaces("observation", obs_space, alone)
        self.action_spaces = self._spaces("action", act_space, alone)
        # Classic environments that hold the wrapper declare these spaces as their own.
        self.observation_space = _whole(obs_space, self.observation_spaces)
        self.action_space = _whole(act_space, self.action_spaces)
        self.metadata = env.metadata  # type: ignore[misc]
        self.render_mode = env.render_mode
        self._groups: dict[AgentId, AgentGroup] = {}
        for group, members in self.groups.items():
            space: Any = self.observation_spaces[group]
            actions: Any = self.action_spaces[group]
            if state is not None:
                space = self.observation_spaces[group] = gym.spaces.Tuple([*space.spaces, state])
            seen = None if state is None else partial(state_row, env)
            self._groups[group] = AgentGroup(group, members, space, actions, seen)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        plain = seed is None and options is None
        result = self.env.reset() if plain else self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or [type(part) for part in result] != [dict, dict]:
            return result
        for group in self._groups.values():
            group.begin()
        grouped = self._group((result[0], {}, {ALL: False}, {ALL: False}, result[1]))
        return grouped[0], grouped[4]

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Step with one action per member and group the result.

        Raises:
            ContractError: The number of a group's actions is wrong, or the group does not act; only some
                of a group's living members must act; a member's reward is not a number.
        """
        actions: AgentDict = {}
        for agent, action in action_dict.items():
            if agent in self._groups:
                actions.update(self._groups[agent].unpack(action))
            elif agent in self._group_of:
                raise ContractError(
                    f"GroupAgentsWrapper.step: got an action for {agent!r}, expected one for its group "
                    f"{self._group_of[agent]!r}; answer the agents and groups of the last obs"
                )
            else:
                actions[agent] = action
        result = self.env.step(actions)
        if not _is_well_formed(result):
            return result
        return self._group(result)

    def state(self) -> Any:
        return self.env.state()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def get_observation_space(self, agent_id: AgentId) -> gym.Space[Any]:
        return self._space_of("observation", agent_id)

    def get_action_space(self, agent_id: AgentId) -> gym.Space[Any]:
        return self._space_of("action", agent_id)

    def _group(self, result: StepDicts) -> StepDicts:
        out: StepDicts = ({}, {}, {}, {}, {})
        for group in self._groups.values():
            group.add_step(result, out)
        members = self._group_of
        for part, values in zip(out, result, strict=True):
            part.update({agent: value for agent, value in values.items() if agent not in members})
        self.agents = [
            *[group_id for group_id, group in self._groups.items() if group.alive],
            *[agent for agent in self.env.agents if agent not in members],
        ]
        return out

    def _space_of(self, kind: str, agent_id: AgentId) -> gym.Space[Any]:
        by_agent: Mapping[AgentId, gym.Space[Any]] = getattr(self, f"{kind}_spaces")
        # The environment may know more agents than it lists.
        return by_agent[agent_id] if agent_id in self.groups else _own_space(self.env, kind, agent_id)

    def _spaces(self, kind: str, given: GroupSpaces, alone: Sequence[AgentId]) -> dict[Any, gym.Space[Any]]:
        spaces: dict[Any, gym.Space[Any]] = {}
        by_group = given if isinstance(given, Mapping) else dict.fromkeys(self.groups, given)
        for group in {**self.groups, **by_group}:
            members = self.groups.get(group, ())
            space = by_group.get(group)
            if space is None:
                space = gym.spaces.Tuple([_own_space(self.env, kind, member) for member in members])
            if not isinstance(space, gym.spaces.Tuple) or len(space.spaces) != len(members):
                raise ConfigError(
                    f"with_agent_groups: the {kind} space of group {group!r} is {space!s:.80}, expected a Tuple of "
                    f"{len(members)} spaces, one a member; leave it out to use the members' own"
                )
            spaces[group] = space
        for agent in alone:
            with suppress(ContractError):  # the environment may declare the space later
                spaces[agent] = _own_space(self.env, kind, agent)
        return spaces


def _whole(given: GroupSpaces, by_agent: dict[Any, gym.Space[Any]]) -> gym.Space[Any]:
    return given if isinstance(given, gym.Space) else gym.spaces.Dict(by_agent)


def _own_space(env: MultiAgentEnv, kind: str, agent: AgentId) -> gym.Space[Any]:
    return env.get_observation_space(agent) if kind == "observation" else env.get_action_space(agent)


def with_equal_spaces(spaces: Mapping[Any, Any]) -> list[tuple[str, list[Any]]]:
    """Return the agents with equal `spaces`, each group with the name of its first agent without the number."""
    found: list[tuple[Any, list[Any]]] = []
    for agent, own in spaces.items():
        members = next((members for other, members in found if other == own), None)
        if members is None:
            found.append((own, [agent]))
        else:
            members.append(agent)
    return [(re.sub(r"[\W_]*\d+$", "", str(members[0])), members) for _, members in found]


def alike(spaces: Mapping[AgentId, Any]) -> dict[AgentId, list[AgentId]]:
    """Return the agents with equal `spaces` as groups: "team", or several with the names of agents without numbers."""
    found = with_equal_spaces(spaces)
    groups: dict[AgentId, list[AgentId]] = {}
    for stem, members in found:
        name = stem if len(found) > 1 else "team"
        while not name or name in groups or name in spaces:
            name = f"{name}_team"
        groups[name] = members
    return groups


def checked_groups(
    groups: Mapping[Any, Sequence[Any]], known: Sequence[AgentId]
) -> dict[AgentId, list[AgentId]]:
    """Return the groups of `known` agents; ConfigError if they are none."""
    if not isinstance(groups, Mapping) or not groups:
        raise ConfigError(
            f"with_agent_groups: the groups are {type(groups).__name__} {groups!s:.40}, expected a dict that is not "
            'empty; write env.with_agent_groups({"group": ["agent_1", "agent_2"]})'
        )
    shown = ", ".join(map(repr, known[:16]))
    grouped: set[AgentId] = set()
    for group, members in groups.items():
        if group in known or group in (ALL, COMMON):
            raise ConfigError(
                f"with_agent_groups: {group!r} is the id of a group and of an agent, expected ids that are not among "
                f"{shown}, {ALL!r} and {COMMON!r}; rename the group"
            )
        if isinstance(members, str) or not isinstance(members, Sequence) or not members:
            raise ConfigError(
                f"with_agent_groups: the members of group {group!r} are {members!r:.80}, expected a list of at least "
                "one agent id; list them in the order of their actions"
            )
        for member in members:
            # An environment without possible_agents may know all of them.
            if member in grouped or (known and member not in known):
                raise ConfigError(
                    f"with_agent_groups: member {member!r} of group {group!r} is unknown or listed twice, expected "
                    f"each of {shown} in one group at most, once; correct the ids, or add them to possible_agents"
                )
            grouped.add(member)
    return {group: list(members) for group, members in groups.items()}


def _is_well_formed(result: object) -> bool:
    """Return whether a step returned five dicts with both flags of `"__all__"`."""
    return (
        isinstance(result, tuple | list)
        and len(result) == 5
        and all(isinstance(part, dict) for part in result)
        and ALL in result[2]
        and ALL in result[3]
    )


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
