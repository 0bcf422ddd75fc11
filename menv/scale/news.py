"""What happened in one host of environments since it told last: a `Ready` in the form in which it travels.

`menv.scale.env_host` makes it, `menv.scale.far_host` reads it. Sub-environments have the numbers that they have among
all hosts of a `RemoteEnvs`; slots are the host's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from menv.base_env import (
    AgentId,
    End,
    EpisodeEnd,
    FloatArray,
    IntArray,
    Join,
    Ready,
    SharedInfo,
    Unclaimed,
)  # fmt: skip
from menv.fault import Fault


class Events(NamedTuple):
    """What happened besides the rows.

    Attributes:
        joined: See `Ready`.
        ended: See `Ready`.
        episodes: See `Ready`.
        unclaimed: See `Ready`.
        faults: See `Ready`.
        shared_infos: See `Ready`.
        starts: [k] env steps of each sub-environment of the host at its last reset.
    """

    joined: Sequence[Join]
    ended: Sequence[End]
    episodes: Sequence[EpisodeEnd]
    unclaimed: Sequence[Unclaimed]
    faults: Sequence[Fault]
    shared_infos: Sequence[SharedInfo]
    starts: Sequence[int]


class News(NamedTuple):
    """What a host tells.

    Attributes:
        slots: [R] who waits; None if they are those of the host's last news.
        obs: R observations, packed.
        rewards: [R] earned since each agent's previous row.
        env_steps: [k] of the host's sub-environments.
        infos: R info dicts, None where all are empty.
        held: Rewards that were paid and wait for their agent's next row, by sub-environment and agent.
        events: None if there were none.
    """

    slots: IntArray | None
    obs: Any
    rewards: FloatArray
    env_steps: IntArray
    infos: Sequence[Mapping[str, Any]] | None
    held: Mapping[int, Mapping[AgentId, float]]
    events: Events | None


def renumbered(ready: Ready, offset: int, starts: Sequence[int]) -> Events | None:
    """Return the events of a `Ready` with the numbers of its sub-environments moved up."""
    told = (ready.joined, ready.ended, ready.episodes, ready.unclaimed, ready.faults, ready.shared_infos)
    if not any(told):
        return None
    return Events(
        [
            one._replace(env_id=one.env_index + offset, env_index=one.env_index + offset)
            for one in ready.joined
        ],
        [one._replace(env_id=_moved(one.env_id, offset)) for one in ready.ended],
        [
            one._replace(env_id=one.env_index + offset, env_index=one.env_index + offset)
            for one in ready.episodes
        ],
        [
            one._replace(env_id=one.env_index + offset, env_index=one.env_index + offset)
            for one in ready.unclaimed
        ],
        [_fault(one, offset) for one in ready.faults],
        [one._replace(env_id=_moved(one.env_id, offset)) for one in ready.shared_infos],
        starts,
    )


def _fault(fault: Fault, offset: int) -> Fault:
    index, where = fault.env_index + offset, f" in {fault.where} of env "
    said, _, place = fault.line.rpartition(f"{where}{fault.env_id}")
    return fault._replace(env_id=index, env_index=index, line=f"{said}{where}{index}{place}")


def _moved(env_id: Any, offset: int) -> int:
    return int(env_id) + offset
