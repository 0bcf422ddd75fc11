"""What a learner keeps of its experience, and how it draws from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from menv.algorithms.config.field_checks import MOST, check_count, check_number, shown
from menv.algorithms.config.keys import section_named
from menv.errors import ConfigError

_KINDS = {
    "ReplayBuffer": False,
    "MultiAgentReplayBuffer": False,
    "PrioritizedReplayBuffer": True,
    "MultiAgentPrioritizedReplayBuffer": True,
}

_MOST_PRIORITIES = 10**8
"""All of them have their places from the start; the rows themselves come one by one."""


@section_named("replay_buffer_config")
@dataclass(frozen=True, kw_only=True)
class ReplayBufferConfig:
    """The `replay_buffer_config` section; every policy has a buffer of its own."""

    type: str | None = None
    """A classic name, such as "ReplayBuffer" or "PrioritizedReplayBuffer", which decides `prioritized_replay`; None
    leaves that to the field itself."""
    capacity: int = 100_000
    """Rows; the oldest ones make room. With a memory a sequence counts as `max_seq_len` rows, however short it is."""
    prioritized_replay: bool = False
    """Whether rows with larger errors are drawn more often."""
    prioritized_replay_alpha: float = 0.6
    """How much errors count for that; 0 draws uniformly."""
    prioritized_replay_beta: float = 0.4
    """How much of the bias of uneven chances is corrected; 1 is all of it."""
    prioritized_replay_eps: float = 1e-6
    """Added to the size of every error, in the unit in which Q-values are learned, so that every row may be
    sampled."""

    def __post_init__(self) -> None:
        if self.type is not None:
            if not isinstance(self.type, str) or self.type not in _KINDS:
                raise ConfigError(
                    f"replay_buffer_config: type is {shown(self.type)}, expected one of {', '.join(_KINDS)}; "
                    "leave it out"
                )
            object.__setattr__(self, "prioritized_replay", _KINDS[self.type])
        if not isinstance(self.prioritized_replay, bool):
            raise ConfigError(
                f"replay_buffer_config: prioritized_replay is {shown(self.prioritized_replay)}, expected True or "
                "False; choose one"
            )
        most = _MOST_PRIORITIES if self.prioritized_replay else MOST
        check_count("replay_buffer_config", "capacity", self.capacity, 1, most)
        for part, least in (("alpha", 0.0), ("beta", 0.0), ("eps", 1e-12)):
            name = f"prioritized_replay_{part}"
            check_number("replay_buffer_config", name, getattr(self, name), least, 1.0)


def newly_chosen(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return keys that are put over those of another section, so that its `type` decides no more what they decide."""
    return {"type": None, **changes} if "prioritized_replay" in changes else changes
