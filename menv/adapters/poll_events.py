"""What happened between two polls besides the rows; filled by the adapters, handed out in `Ready`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from menv.base_env import AgentId, End, EnvId, EpisodeEnd, Join, SharedInfo, Unclaimed
from menv.errors import ContractError, EnvFault

_EMPTY: Mapping[str, Any] = {}


@dataclass(slots=True)
class PollEvents:
    """The lists of one `Ready`, in the order in which they are to be taken in."""

    ended: list[End] = field(default_factory=list)
    unclaimed: list[Unclaimed] = field(default_factory=list)
    episodes: list[EpisodeEnd] = field(default_factory=list)
    joined: list[Join] = field(default_factory=list)
    faults: list[EnvFault] = field(default_factory=list)
    shared_infos: list[SharedInfo] = field(default_factory=list)

    def take_shared(self, env_id: EnvId, info: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the last info of an episode as a whole, which ends with `info`; those before it are forgotten."""
        for shared in reversed(self.shared_infos):
            if shared.env_id == env_id and info is None:
                info = shared.info
        self.shared_infos = [shared for shared in self.shared_infos if shared.env_id != env_id]
        return info

    def step_on(self, env_id: EnvId) -> None:
        """Note that a sub-environment takes another env step before the poll that tells of these ends."""
        for place, end in enumerate(self.ended):
            if end.env_id == env_id:
                self.ended[place] = end._replace(ago=end.ago + 1)


def all_empty(infos: Mapping[AgentId, Any]) -> bool:
    """Return whether nobody's info says anything."""
    try:
        return [*infos.values()].count(_EMPTY) == len(infos)
    except ValueError:
        # An array in the place of an info.
        return False


def check_info(info: Any, whose: str) -> None:
    """Refuse an info that is no dict.

    Args:
        info: What the environment returned; a subclass of dict will do.
        whose: Begins the message, such as "env 3 step".

    Raises:
        ContractError: It is something else.
    """
    if not isinstance(info, dict):
        raise ContractError(
            f"{whose}: info is {type(info).__name__}, expected a dict; return {{}} if there is nothing to tell"
        )


# SEAM menv.adapters.recorded
# An episode that was written down as its seed and its actions, to be played again in a new environment.
#
# `menv.sampling.episode_checkpoint` makes them; the adapters of environments in this process play them.


@dataclass(frozen=True, slots=True)
class EpisodeReplay:
    """One running episode.

    Attributes:
        start: Env steps of its sub-environment at its reset.
        stop: Env steps at which it was written down.
        seed: Of its reset, None where the environment was left alone.
        actions: Env-ready actions of each agent, in order.
        slots: The slot of each agent that its sub-environment knows.
        shown: The digest of what waited when it was written down.
    """

    start: int
    stop: int
    seed: int | None
    actions: Mapping[AgentId, Iterator[Any]]
    slots: Mapping[AgentId, int]
    shown: str
