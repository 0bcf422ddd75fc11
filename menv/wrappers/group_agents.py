"""Agent grouping: several agents become one, with Tuple observations and Tuple actions.

`env.with_agent_groups(...)` creates the wrapper; what happens to one group in an episode is told in
`menv.wrappers.group_agents`. It knows no policies: a group is mapped to one like any other agent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, COMMON, AgentId
from menv.episode import MEMBER_REWARDS
from menv.errors import ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.spaces import as_flag, as_reward, built, flat_mask, open_mask, own_copy

MASK_KEY = "action_mask"
STATE_KEY = "state"
"""The entry of a Dict observation that holds the state of the whole, the same for all members."""


class AgentGroup:
    """Several agents that are seen as one.

    Attributes:
        group_id: The agent id of the group.
        members: Ids of the members, in the order of all tuples.
        space: The Tuple space of the observations.
        acting: The members that wait for an action.
        alive: Whether a life of the group has been shown and has not ended.
        late: What was paid in this step to whom after the group's end, which a group around it still counts.
    """

    def __init__(self, group_id: AgentId, members: Sequence[AgentId], space: gym.spaces.Tuple[Any]) -> None:
        self.group_id = group_id
        self.members = tuple(members)
        self.space = space
        self.begin()

    def begin(self) -> None:
        """Forget the episode before."""
        self.acting: list[AgentId] = []
        self.alive = False
        self.late: dict[AgentId, float] = {}
        # Whether a life has ended and none has begun since.
        self._over = False
        self._last: AgentDict = {}
        # The members that have ended, with True where the end was a truncation.
        self._ended: dict[AgentId, bool] = {}
        self._earned: dict[AgentId, float] = {}
        self._told: AgentDict = {}
        # What the members' infos said last about `training_enabled`, in this life of the group.
        self._trained: dict[AgentId, bool] = {}
        # What each member has earned in this life of the group.
        self._lifetime: dict[AgentId, float] = {}

    def unpack(self, actions: Any) -> AgentDict:
        """Return `{member: action}` for the members that wait.

        Args:
            actions: A sequence of one action a member, in their order; those of others are not read.

        Raises:
            ContractError: The group does not wait, or the number of actions is wrong.
        """
        if not self.acting:
            raise ContractError(
                f"GroupAgentsWrapper.step: got actions for group {self.group_id!r}, which does not wait, expected "
                "none for it; answer the agents and groups of the last obs"
            )
        if not isinstance(actions, Sequence | np.ndarray) or len(actions) != len(self.members):
            count = f"{len(actions)} of them" if hasattr(actions, "__len__") else type(actions).__name__
            raise ContractError(
                f"GroupAgentsWrapper.step: the actions of group {self.group_id!r} are {count}, expected "
                f"{len(self.members)}, one for each of {_names(self.members)}; return an element of its action space"
            )
        by_member = dict(zip(self.members, actions, strict=True))
        return {member: by_member[member] for member in self.acting}

    @property
    def rests(self) -> bool:
        """Whether no member is alive."""
        return all(member in self._ended for member in self._last)

    def take(self, result: StepDicts, out: StepDicts, inner: Mapping[AgentId, AgentGroup]) -> None:
        """Read the environment's step and add the group's part to `out`.

        Args:
            result: The five dicts.
            out: Those of the groups.
            inner: The members that are groups themselves, which have taken it in before.

        Raises:
            ContractError: Some living members must act and others need not; a reward is no number.
        """
        obs, rewards, terminateds, truncateds, infos = result
        over = bool(terminateds[ALL] or truncateds[ALL])
        seen = [member for member in self.members if member in obs]
        self._see(seen, obs, terminateds, truncateds)
        self.acting = [] if over else [member for member in seen if member not in self._ended]
        self._check_together(inner)
        self._pay(rewards, out[1], {member: group.late for member, group in inner.items()})
        if infos:
            self._note(infos)
        gone = len(self._ended) == len(self.members)
        # An agent that ends in its first step is reported as well.
        ends = (self.alive and (over or gone)) or (gone and bool(seen))
        if self.acting or (ends and seen):
            self._show(obs, out)
        if ends:
            self._end(bool(truncateds[ALL]) and not terminateds[ALL], out)

    def _see(
        self, seen: Sequence[AgentId], obs: AgentDict, terminateds: AgentDict, truncateds: AgentDict
    ) -> None:
        for member in seen:
            self._last[member] = own_copy(obs[member])
            # Who is observed again lives again, unless its flag says otherwise.
            self._ended.pop(member, None)
        if len(terminateds) > 1 or len(truncateds) > 1:
            for member in self.members:
                if terminateds.get(member) or truncateds.get(member):
                    self._ended.setdefault(member, not terminateds.get(member))

    def _check_together(self, inner: Mapping[AgentId, AgentGroup]) -> None:
        if not self.acting:
            return
        idle = [member for member in self._last if member not in self._ended and member not in self.acting]
        if idle := [member for member in idle if member not in inner or not inner[member].rests]:
            raise ContractError(
                f"GroupAgentsWrapper: group {self.group_id!r} has observations for {_names(self.acting)} and none for "
                f"{_names(idle)}, which still live, expected all living members at the same time; group only agents "
                "that act at the same time"
            )

    def _pay(
        self, rewards: AgentDict, out: AgentDict, late: Mapping[AgentId, Mapping[AgentId, float]]
    ) -> None:
        """Pass the sum of the members' rewards on at once, and remember who earned what."""
        self.late = {}
        paid = {member: self._number(member, rewards[member]) for member in self.members if member in rewards}
        if not paid:
            return
        out[self.group_id] = math.fsum(paid.values())
        everybody = {**paid, **{one: late[member][one] for member in paid for one in late.get(member, ())}}
        # What is paid between two lives of the group belongs to neither.
        if not self.acting and self._over:
            self.late = everybody
            return
        for member, reward in paid.items():
            self._earned[member] = self._earned.get(member, 0.0) + reward
        for member, reward in everybody.items():
            self._lifetime[member] = self._lifetime.get(member, 0.0) + reward

    def _note(self, infos: AgentDict) -> None:
        told = {member: infos[member] for member in self.members if member in infos}
        self._told.update(told)
        for member, info in told.items():
            if isinstance(info, Mapping) and "training_enabled" in info:
                whose = f"group {self.group_id!r}, member {member!r}: info['training_enabled']"
                self._trained[member] = as_flag(info["training_enabled"], whose)
            # A member that is a group itself tells what its own members earned.
            if isinstance(info, Mapping) and MEMBER_REWARDS in info:
                for member, reward in info[MEMBER_REWARDS].items():
                    self._lifetime[member] = self._lifetime.get(member, 0.0) + reward

    def _show(self, obs: AgentDict, out: StepDicts) -> None:
        self.alive, self._over = True, False
        out[0][self.group_id] = tuple(self._shown(place, obs) for place in range(len(self.members)))
        out[4][self.group_id] = self._info(list(self.acting))
        self._earned, self._told = {}, {}

    def _info(self, acting: list[AgentId]) -> dict[str, Any]:
        """Return the group's info dict; no policy learns from a group that has a member it may not learn from."""
        info = {"individual_rewards": self._earned, "individual_infos": self._told, "acting": acting}
        return {**info, "training_enabled": all(self._trained.values())} if self._trained else info

    def _tell_lifetime(self, out: StepDicts) -> None:
        """Add to the group's last info what each member earned, also where the group is not shown then."""
        out[4].setdefault(self.group_id, self._info([]))[MEMBER_REWARDS] = self._lifetime
        self._lifetime, self._trained = {}, {}

    def _end(self, truncated: bool, out: StepDicts) -> None:
        truncations = [self._ended.get(member, truncated) for member in self.members]
        out[2][self.group_id], out[3][self.group_id] = not any(truncations), any(truncations)
        self.alive, self._over = False, True
        self._tell_lifetime(out)
        # How members ended says nothing about a later life of the group.
        self._ended = dict.fromkeys(self._ended, False)
        self._earned, self._told = {}, {}

    def _shown(self, place: int, obs: AgentDict) -> Any:
        """Return a member's observation; a member that does not act still needs a choice, which is ignored."""
        member = self.members[place]
        shown = obs[member] if member in obs else self._stand_in(place, obs)
        return shown if member in self.acting else opened(shown)

    def _stand_in(self, place: int, obs: AgentDict) -> Any:
        """Return the placeholder observation of a member without one; it is a fresh copy."""
        member = self.members[place]
        if member in self._last:
            shown = own_copy(self._last[member])
        else:
            shown = blank(self.space.spaces[place], f"group {self.group_id!r}, member {member!r}")
        if isinstance(shown, dict) and STATE_KEY in shown:
            # The global state continues after members end.
            others = [obs[other] for other in self.members if other in obs]
            states = [other[STATE_KEY] for other in others if isinstance(other, dict) and STATE_KEY in other]
            return {**shown, STATE_KEY: own_copy(states[0])} if states else shown
        return shown

    def _number(self, member: AgentId, reward: Any) -> float:
        if type(reward) is float and math.isfinite(reward):
            return reward
        return as_reward(
            reward, f"GroupAgentsWrapper.step: the reward of {member!r} in group {self.group_id!r}"
        )


def opened(obs: Any) -> Any:
    """Return an observation whose mask, or that of a member of a group in it, is open where it allows nothing."""
    if isinstance(obs, tuple):
        return tuple(opened(part) for part in obs)
    if isinstance(obs, dict) and MASK_KEY in obs and not np.any(flat_mask(obs[MASK_KEY])):
        return {**obs, MASK_KEY: open_mask(obs[MASK_KEY])}
    return obs


def blank(space: gym.Space[Any], where: str) -> Any:
    """Return the placeholder element of `space`: zeros, or the nearest element.

    An entry `"action_mask"` of a Dict allows everything.

    Raises:
        ContractError: The space has no such element.
    """
    spaces = gym.spaces
    if isinstance(space, spaces.Dict):
        return {
            key: built(part, lambda _, leaf: np.ones(leaf.shape or (), leaf.dtype))
            if key == MASK_KEY
            else blank(part, f"{where}[{key!r}]")
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(blank(part, f"{where}[{i}]") for i, part in enumerate(space.spaces))
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


def _names(members: Sequence[AgentId]) -> str:
    return ", ".join(map(repr, members[:8])) + (", ..." if len(members) > 8 else "")


GroupSpaces: TypeAlias = Mapping[Any, gym.Space[Any]] | gym.Space[Any] | None


class GroupAgentsWrapper(MultiAgentEnv):
    """Makes one agent of each group; agents without a group stay unchanged.

    - The observation of a group is the tuple of its members' observations, its action a sequence of
      their actions, both in the order in which the group lists them.
    - All living members act at the same time. One that has not appeared yet is shown as the blank of
      its space (zeros; in an `"action_mask"`, ones), one that has ended as it was last seen; but an entry
      `"state"` of a Dict, the state of the whole, is the one that others are shown, and an `"action_mask"` that
      allows nothing, as after the last action, is all ones. Their actions are ignored: the environment gets those
      of `infos[group]["acting"]` only.
    - The reward of a group is the sum over its members, paid at the step at which they were; members
      that have ended still earn for it.
    - A group lives as long as one member does, or has yet to appear: it ends with its last member, or
      with the episode. The end is a truncation if that of any member was, else a termination. A member
      that returns lives on in the group, or begins a new life of it.
    - `infos[group]` comes with each observation of the group. `"individual_rewards"` is `{member:
      reward}` since the observation before, which adds up to the group's reward for that row;
      `"individual_infos"` holds what the environment told each member; `"acting"` lists those that act. It comes
      with each end of the group too, and tells then what each member earned in that life: results have it under
      `agent_reward_*`, beside the groups' own returns, which are under `group_reward_*` as well.
    - An info `{"training_enabled": False}` of one member excludes the group's trajectory from training, until a later
      info of that member says True.

    A group may be a member of another one: wrap twice. What breaks the contract of `MultiAgentEnv` is
    passed on as it is, for the adapter to name.

    Attributes:
        env: The environment with single agents.
        groups: `{group: [member, ...]}`.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        groups: Mapping[Any, Sequence[Any]],
        obs_space: GroupSpaces = None,
        act_space: GroupSpaces = None,
    ) -> None:
        """Group the agents of `env`.

        Args:
            env: The environment; it is stepped through this wrapper only.
            groups: Member ids by group id, which becomes an agent id.
            obs_space: Tuple space of the groups' observations: one for all groups, or by group id in a
                dict or Dict space. What is missing is made of the members' own spaces.
            act_space: Likewise for the actions.

        Raises:
            ConfigError: A member is unknown or listed twice, a group is empty or has the id of an agent,
                or a space does not fit.
            ContractError: A member declares no space and none was given for its group.
        """
        super().__init__()
        self.env = env
        known = _known_agents(env)
        self.groups = _checked_groups(groups, known)
        self._group_of = {member: group for group, members in self.groups.items() for member in members}
        alone = [agent for agent in known if agent not in self._group_of]
        self.possible_agents = [*self.groups, *alone]
        self.observation_spaces = self._spaces("observation", obs_space, alone)
        self.action_spaces = self._spaces("action", act_space, alone)
        # Classic environments that hold the wrapper declare what it says here as their own.
        self.observation_space = _whole(obs_space, self.observation_spaces)
        self.action_space = _whole(act_space, self.action_spaces)
        self.metadata = env.metadata  # type: ignore[misc]
        self.render_mode = env.render_mode
        self._states: dict[AgentId, AgentGroup] = {}
        # The groups that wrappers beneath this one make, which may be members here.
        self._inner: dict[AgentId, AgentGroup] = {}
        if isinstance(env, GroupAgentsWrapper):
            self._inner = {**env._inner, **env._states}
        for group, members in self.groups.items():
            space: Any = self.observation_spaces[group]
            self._states[group] = AgentGroup(group, members, space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new episode of the environment."""
        plain = seed is None and options is None
        result = self.env.reset() if plain else self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or [type(part) for part in result] != [dict, dict]:
            return result
        for state in self._states.values():
            state.begin()
        grouped = self._group((result[0], {}, {ALL: False}, {ALL: False}, result[1]))
        return grouped[0], grouped[4]

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Step with one action per member and group the result.

        Raises:
            ContractError: The actions of a group are too few or too many, or are not asked for; only some
                of a group's living members must act; a member's reward is no number.
        """
        actions: AgentDict = {}
        for agent, action in action_dict.items():
            if agent in self._states:
                actions.update(self._states[agent].unpack(action))
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

    def render(self) -> Any:
        """Return what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def get_observation_space(self, agent_id: AgentId) -> gym.Space[Any]:
        """Return the observation space of a group, or that of an agent in no group."""
        return self._space_of("observation", agent_id)

    def get_action_space(self, agent_id: AgentId) -> gym.Space[Any]:
        """Return the action space of a group, or that of an agent in no group."""
        return self._space_of("action", agent_id)

    def _group(self, result: StepDicts) -> StepDicts:
        out: StepDicts = ({}, {}, {}, {}, {})
        for state in self._states.values():
            state.take(result, out, self._inner)
        members = self._group_of
        for part, values in zip(out, result, strict=True):
            part.update({agent: value for agent, value in values.items() if agent not in members})
        self.agents = [
            *[group for group, state in self._states.items() if state.alive],
            *[agent for agent in self.env.agents if agent not in members],
        ]
        return out

    def _space_of(self, kind: str, agent_id: AgentId) -> gym.Space[Any]:
        by_agent: Mapping[AgentId, gym.Space[Any]] = getattr(self, f"{kind}_spaces")
        # The environment may know more agents than it lists.
        return by_agent[agent_id] if agent_id in self.groups else _own_space(self.env, kind, agent_id)

    def _spaces(self, kind: str, given: GroupSpaces, alone: Sequence[AgentId]) -> dict[Any, gym.Space[Any]]:
        spaces: dict[Any, gym.Space[Any]] = {}
        by_group = _by_group(kind, given, self.groups)
        for group, members in self.groups.items():
            space = by_group.get(group)
            if space is None:
                space = gym.spaces.Tuple([_own_space(self.env, kind, member) for member in members])
            if not isinstance(space, gym.spaces.Tuple) or len(space.spaces) != len(members):
                raise ConfigError(
                    f"with_agent_groups: the {kind} space of group {group!r} is {space!s:.80}, expected a Tuple of "
                    f"{len(members)} spaces, one a member; leave it out to take the members' own"
                )
            spaces[group] = space
        for agent in alone:
            try:
                spaces[agent] = _own_space(self.env, kind, agent)
            except ContractError:
                # The environment raises if it is asked; it may declare the space later.
                continue
        return spaces


def _whole(given: GroupSpaces, by_agent: dict[Any, gym.Space[Any]]) -> gym.Space[Any]:
    return given if isinstance(given, gym.Space) else gym.spaces.Dict(by_agent)


def _own_space(env: MultiAgentEnv, kind: str, agent: AgentId) -> gym.Space[Any]:
    return env.get_observation_space(agent) if kind == "observation" else env.get_action_space(agent)


def _known_agents(env: MultiAgentEnv) -> list[AgentId]:
    return list(dict.fromkeys([*env.possible_agents, *sorted(env.get_agent_ids(), key=repr)]))


def _checked_groups(
    groups: Mapping[Any, Sequence[Any]], known: Sequence[AgentId]
) -> dict[AgentId, list[AgentId]]:
    if isinstance(groups, MultiAgentEnv):
        raise ConfigError(
            f"with_agent_groups: the groups are an environment ({type(groups).__name__}), expected a dict; write "
            'env.with_agent_groups({"group": ["agent_1", "agent_2"]}), the environment is what the dot follows'
        )
    if not isinstance(groups, Mapping) or not groups:
        raise ConfigError(
            f"with_agent_groups: the groups are {type(groups).__name__} {groups!s:.40}, expected a dict that is not "
            'empty; write env.with_agent_groups({"group": ["agent_1", "agent_2"]})'
        )
    found: dict[AgentId, AgentId] = {}
    for group, members in groups.items():
        _check_group(group, members, known)
        for member in members:
            if member in found:
                raise ConfigError(
                    f"with_agent_groups: agent {member!r} is in group {found[member]!r} and again in {group!r}, "
                    "expected each agent in one group at most, once; take it out of one"
                )
            found[member] = group
    return {group: list(members) for group, members in groups.items()}


def _check_group(group: AgentId, members: Any, known: Sequence[AgentId]) -> None:
    shown = ", ".join(map(repr, known[:16]))
    if group in known or group in (ALL, COMMON):
        raise ConfigError(
            f"with_agent_groups: {group!r} is the id of a group and of an agent, expected ids that are not among "
            f"{shown}, {ALL!r} and {COMMON!r}; rename the group"
        )
    if isinstance(members, str) or not isinstance(members, Sequence) or not members:
        raise ConfigError(
            f"with_agent_groups: the members of group {group!r} are {members!r:.80}, expected a list of at least one "
            "agent id; list them in the order in which their actions shall stand"
        )
    # An environment without possible_agents may know all of them.
    unknown = [member for member in members if known and member not in known]
    if unknown:
        raise ConfigError(
            f"with_agent_groups: group {group!r} has members {unknown[:8]!r}, expected some of {shown}; correct the "
            "ids, or add them to possible_agents"
        )


def _by_group(
    kind: str, given: GroupSpaces, groups: Mapping[Any, Sequence[Any]]
) -> Mapping[Any, gym.Space[Any]]:
    if given is None:
        return {}
    if isinstance(given, gym.spaces.Dict):
        given = given.spaces
    if isinstance(given, gym.Space):
        return dict.fromkeys(groups, given)
    spaces = list(given.values()) if isinstance(given, Mapping) else [given]
    wrong = next((one for one in spaces if one is not None and not isinstance(one, gym.Space)), None)
    if wrong is not None:
        raise ConfigError(
            f"with_agent_groups: {kind} spaces are given as a {type(wrong).__name__}, expected a gymnasium Space, or a "
            "dict of them by group; leave them out for those of the members"
        )
    unknown = [group for group in given if group not in groups]
    if unknown:
        raise ConfigError(
            f"with_agent_groups: {kind} spaces are given for {unknown[:8]!r}, expected some of the groups "
            f"{list(groups)[:8]!r}; correct the ids"
        )
    return given


def _is_well_formed(result: Any) -> bool:
    """Return whether a step gave five dicts with both flags for everybody."""
    return (
        isinstance(result, tuple | list)
        and len(result) == 5
        and all(isinstance(part, dict) for part in result)
        and ALL in result[2]
        and ALL in result[3]
    )
