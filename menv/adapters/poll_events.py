"""What happened between two polls, except for the rows; adapters fill it and return it in `Ready`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from menv.base_env import AgentId, End, EnvId, EpisodeEnd, IntArray, Join, Ready, SharedInfo, Unclaimed
from menv.errors import ContractError, EnvFault

_EMPTY: Mapping[str, Any] = {}


@dataclass(slots=True)
class PollEvents:
    """The lists of one `Ready`, in the order in which a reader processes them."""

    ended: list[End] = field(default_factory=list)
    unclaimed: list[Unclaimed] = field(default_factory=list)
    episodes: list[EpisodeEnd] = field(default_factory=list)
    joined: list[Join] = field(default_factory=list)
    faults: list[EnvFault] = field(default_factory=list)
    shared_infos: list[SharedInfo] = field(default_factory=list)

    def take_shared(self, env_id: EnvId, info: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the last shared info of an episode that ends with `info`, and drop its earlier ones."""
        for shared in reversed(self.shared_infos):
            if shared.env_id == env_id and info is None:
                info = shared.info
        self.shared_infos = [shared for shared in self.shared_infos if shared.env_id != env_id]
        return info

    def take_ends(self, env_steps: IntArray, seats: Sequence[tuple[EnvId, AgentId]]) -> Ready:
        """Remove what belongs to episodes that ended, and return it without rows, for a poll that pauses."""
        over = {episode.env_id for episode in self.episodes}
        ended = [end for end in self.ended if end.env_id in over]
        unclaimed = [entry for entry in self.unclaimed if entry.env_id in over]
        counts = list(accumulate((entry.env_id in over for entry in self.unclaimed), initial=0))
        episodes = [one._replace(unclaimed=counts[one.unclaimed]) for one in self.episodes]
        faults, self.faults, self.episodes = self.faults, [], []
        self.ended = [end for end in self.ended if end.env_id not in over]
        self.unclaimed = [entry for entry in self.unclaimed if entry.env_id not in over]
        return Ready(
            np.zeros(0, np.int64), [], np.zeros(0), env_steps, (), ended, episodes, unclaimed, seats=seats,
            faults=faults,
        )  # fmt: skip

    def count_step(self, env_id: EnvId) -> None:
        """Count an env step that a sub-environment takes after its ends and before the poll that reports them."""
        for place, end in enumerate(self.ended):
            if end.env_id == env_id:
                self.ended[place] = end._replace(ago=end.ago + 1)


def all_empty(infos: Mapping[AgentId, Any]) -> bool:
    """Return whether all infos are empty dicts."""
    try:
        return [*infos.values()].count(_EMPTY) == len(infos)
    except ValueError:
        # An array in the place of an info.
        return False


def check_info(info: object, whose: str) -> None:
    """Raise a `ContractError` that begins with `whose` if an info is not a dict, or a subclass of dict."""
    if not isinstance(info, dict):
        raise ContractError(
            f"{whose} is {type(info).__name__}, expected a dict; return {{}} if there is no info",
            "ME029",
        )
