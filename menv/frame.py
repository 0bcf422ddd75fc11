"""One env step of sub-environments that step together, as arrays.

`menv.adapters.lockstep` makes it; `menv.loop.frame_loop` writes it down as it is, and `poll` takes it
apart into rows, joins and ends for everybody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Frame:
    """What E sub-environments of one agent each did in one env step, or in a reset of them all.

    Attributes:
        obs: E observations, an array [E, ...] where the space allows.
        rewards: [E] for this step.
        terminated: [E] flags.
        truncated: [E] flags.
        infos: E info dicts; none at all if all are empty.
        done: [E] True where an episode ended; None if none did.
        begun: [E] True where this step was the reset of a sub-environment and no step of an episode;
            None if there is none.
        finals: The last observations of those that are done, copies, in order, where `obs` holds the
            first one of the next episode; None where `obs` itself holds the last one.
        final_infos: Their info dicts.
    """

    obs: Any
    rewards: npt.NDArray[Any]
    terminated: Flags
    truncated: Flags
    infos: Sequence[Mapping[str, Any]]
    done: Flags | None = None
    begun: Flags | None = None
    finals: Sequence[Any] | None = None
    final_infos: Sequence[Mapping[str, Any]] = ()
