"""Several agents seen as one, with Tuple observations and Tuple actions.

`env.with_agent_groups(...)` creates the wrapper; what happens to one group in an episode is told in
`menv.wrappers.agent_group`. It knows no policies: a group is mapped to one like any other agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym

from menv.base_env import ALL, COMMON, AgentId
from menv.errors import ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.wrappers.agent_group import AgentGroup

GroupSpaces: TypeAlias = Mapping[Any, gym.Space[Any]] | gym.Space[Any] | None


class GroupAgentsWrapper(MultiAgentEnv):
    """Makes one agent of each group of agents; agents in no group are left as they are.

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
        """Give each member its action and group what comes back.

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
                # Whoever asks for it is told by the environment, which may declare it later.
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
    # An environment that lists nobody may know them all.
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
