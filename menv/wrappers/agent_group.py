"""One group of agents in a running episode: its tuple of observations, its sum of rewards, its end.

`menv.wrappers.group_agents` holds one for each group and hands it the dicts of every step. It knows
its members alone; ungrouped agents, spaces of the whole and the environment are the wrapper's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, AgentId
from menv.env_calls import as_flag, as_reward
from menv.episode import MEMBER_REWARDS
from menv.errors import ContractError
from menv.multi_agent_env import AgentDict, StepDicts
from menv.nested import built, flat_mask, open_mask, own_copy

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
        """Whether none of its members lives: those that were seen have ended, and others have yet to appear."""
        return all(member in self._ended for member in self._last)

    def take(self, result: StepDicts, out: StepDicts, inner: Mapping[AgentId, AgentGroup]) -> None:
        """Take in what the environment returned and add what the group returns to `out`.

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
        # A life that ends on the step on which it would begin is told as well.
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
        """Return what is shown of a member; whoever does not act needs a choice all the same, which is ignored."""
        member = self.members[place]
        shown = obs[member] if member in obs else self._stand_in(place, obs)
        return shown if member in self.acting else opened(shown)

    def _stand_in(self, place: int, obs: AgentDict) -> Any:
        """Return what is shown for a member without an observation; nobody else holds it."""
        member = self.members[place]
        if member in self._last:
            shown = own_copy(self._last[member])
        else:
            shown = blank(self.space.spaces[place], f"group {self.group_id!r}, member {member!r}")
        if isinstance(shown, dict) and STATE_KEY in shown:
            # The state of the whole goes on, whoever has ended.
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
    """Return the element of `space` that stands for nobody: zeros, or what comes nearest to them.

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
