"""Sub-environments in a process of their own: the local adapter of a few of them, behind methods that are asked for.

An engine makes an `EnvServer` elsewhere; a `FarHost` of `menv.workers.remote_env_server` asks it. It steps, resets,
seeds and
contains crashes exactly as in the driver, because the same adapter does. It knows neither its process nor who acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from menv import rng
from menv.adapters.convert import to_local_base_env
from menv.adapters.local_envs import LocalEnvs
from menv.adapters.poll_events import EpisodeReplay
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
from menv.errors import ConfigError, EnvFault, MenvError
from menv.spaces import call_method

# SEAM menv.scale.news
# What happened in one host of environments since it told last: a `Ready` in the form in which it travels.
#
# `menv.workers.env_server` makes it, `menv.workers.remote_env_server` reads it. Sub-environments have the
# numbers that they have among
# all hosts of a `RemoteEnvs`; slots are the host's own.


class ServerEvents(NamedTuple):
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
    faults: Sequence[EnvFault]
    shared_infos: Sequence[SharedInfo]
    starts: Sequence[int]


class ServerUpdate(NamedTuple):
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
    events: ServerEvents | None


def renumbered(ready: Ready, offset: int, starts: Sequence[int]) -> ServerEvents | None:
    """Return the events of a `Ready` with the numbers of its sub-environments moved up."""
    told = (ready.joined, ready.ended, ready.episodes, ready.unclaimed, ready.faults, ready.shared_infos)
    if not any(told):
        return None
    return ServerEvents(
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


def _fault(fault: EnvFault, offset: int) -> EnvFault:
    index, where = fault.env_index + offset, f" in {fault.where} of env "
    said, _, place = fault.line.rpartition(f"{where}{fault.env_id}")
    return fault._replace(env_id=index, env_index=index, line=f"{said}{where}{index}{place}")


def _moved(env_id: Any, offset: int) -> int:
    return int(env_id) + offset


Present: TypeAlias = tuple[Mapping[AgentId, int], IntArray]
"""The slots of agents that live, and the slots of those who wait."""


class EnvServer:
    """The other end of a `RemoteEnvs`: some of its sub-environments.

    Args:
        make_env: Creates sub-environment number `vector_index`, counted among all hosts.
        first: Number of the host's first sub-environment.
        size: k, how many it has.
        seed: Gives every reset its own seed; None leaves the environments alone.
        first_index: Index of sub-environment 0 among those of all workers.
        tolerated: Crashes in a row that do not end the run; None creates none again.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        first: int,
        size: int,
        seed: int | None,
        first_index: int,
        tolerated: int | None,
    ) -> None:
        self._first = first
        self._seed = None if seed is None else rng.key(seed, first_index + first)
        if self._seed is not None:
            rng.seed_process(self._seed)
        env = make_env(first)
        base_env = to_local_base_env(
            env, lambda index: make_env(first + index), size, seed=seed, first_index=first_index + first,
            restart_failed_sub_environments=tolerated is not None,
            num_consecutive_env_failures_tolerance=tolerated or 0,
        )  # fmt: skip
        if not isinstance(base_env, LocalEnvs):
            raise ConfigError(
                f"remote_envs: make_env created a {type(env).__name__}, expected a gymnasium.Env or a MultiAgentEnv; "
                "leave remote_worker_envs out"
            )
        self._envs = base_env
        self._slots: IntArray | None = None
        self._begun = False

    def begin(self, env_steps: Mapping[int, int]) -> ServerUpdate:
        """Begin episodes in sub-environments, by their places here, each at its count of env steps."""
        self._begun = True
        if self._seed is not None:
            # A process that takes another's place does not draw the same numbers again.
            rng.seed_process(self._seed, *env_steps.values())
        return self._told(lambda: self._envs.begin_at(env_steps))

    def step(self, slots: IntArray | None, actions: Any) -> ServerUpdate:
        """Answer rows, step, and return what came of it.

        Args:
            slots: Whose answers these are; None if all rows of the last news are answered in their order.
            actions: Theirs, packed.
        """
        slots = self._slots if slots is None else slots
        return self._told(lambda: self._envs.send_actions(slots, unpack_stack(actions)))

    def reset(
        self, place: int, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, Any, ServerUpdate]:
        """Reset a sub-environment and return `(obs, infos)` by agent, and the news; see `BaseEnv.try_reset`."""
        found: list[Any] = []
        news = self._told(lambda: found.extend(self._envs.try_reset(place, seed=seed, options=options)))
        return found[0][place], found[1][place], news

    def restart(self, place: int) -> ServerUpdate | None:
        """Create a sub-environment anew; there is no news where nothing has begun."""
        if not self._begun:
            self._envs.try_restart(place)
            return None
        return self._told(lambda: self._envs.try_restart(place))

    def render(self, place: int) -> Any:
        """Render a sub-environment."""
        return self._envs.try_render(place)

    def call(self, place: int, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of a sub-environment."""
        env = self._envs.get_sub_environments()[place]
        return call_method(env, method, self._first + place, args)

    def free_slots(self) -> list[int]:
        """Return the slots that nobody has."""
        return list(self._envs.free_slots)

    def slots_of(self, place: int) -> dict[AgentId, int]:
        """Return the slot of each agent that a sub-environment knows."""
        return dict(self._envs.slots_of(place))

    def shown(self, place: int) -> str | None:
        """Return a digest of what waits in a sub-environment, None where no file could hold that."""
        return self._envs.shown(place)

    def resume(
        self, env_steps: IntArray, recorded: Mapping[int, EpisodeReplay], seats: Any
    ) -> tuple[set[int], dict[int, Present], ServerUpdate]:
        """Go on where another run was written down; see `CreatedEnvs.resume`.

        Returns:
            The places that begin new episodes; who lives and who waits in each of the others; the news.
        """
        fresh: set[int] = set()
        # Whoever asks has forgotten who waited.
        self._begun, self._slots = True, None
        news = self._told(lambda: fresh.update(self._envs.resume(env_steps, recorded, seats)))
        present = {place: self._envs.present(place) for place in recorded if place not in fresh}
        return fresh, present, news

    def stop(self) -> None:
        """Close all sub-environments."""
        try:
            self._envs.stop()
        except MenvError as error:
            self._renumber(error)
            raise

    def _told(self, act: Callable[[], Any]) -> ServerUpdate:
        try:
            act()
            ready = self._envs.poll()
        except MenvError as error:
            self._renumber(error)
            raise
        slots = None if ready.slots is self._slots else ready.slots
        self._slots = ready.slots
        envs, first = self._envs, self._first
        starts = [envs.episode_start(place) for place in range(envs.num_envs)]
        held = {int(place) + first: paid for place, paid in envs.held_rewards().items()}  # type: ignore[call-overload]
        infos = ready.infos if ready.infos is not None and any(ready.infos) else None
        return ServerUpdate(
            slots,
            pack_stack(ready.obs),
            ready.rewards,
            ready.env_steps,
            infos,
            held,
            renumbered(ready, first, starts),
        )

    def _renumber(self, error: MenvError) -> None:
        """Let a message name a sub-environment by its number among all hosts."""
        for place in range(self._envs.num_envs):
            before = f"env {place} "
            if error.args and str(error.args[0]).startswith(before):
                error.args = (
                    f"env {self._first + place} {str(error.args[0])[len(before) :]}",
                    *error.args[1:],
                )
                return


class ValueStack(NamedTuple):
    """Elements of one type and shape as one array, a row each."""

    rows: Any


class DictStack(NamedTuple):
    """Dicts with the same keys, each key's values packed."""

    keys: tuple[Any, ...]
    values: tuple[Any, ...]


def pack_stack(elements: Any) -> Any:
    """Return a list of elements, or the rows of an array, in the form in which they travel."""
    if isinstance(elements, np.ndarray) or len(elements) < 2:
        return elements
    first = elements[0]
    kind = type(first)
    if any(type(element) is not kind for element in elements):
        return elements
    if kind is np.ndarray and first.ndim and not first.dtype.hasobject:
        shape, dtype = first.shape, first.dtype
        if all(element.shape == shape and element.dtype == dtype for element in elements):
            return ValueStack(np.array(elements))
    elif isinstance(first, np.generic) and first.dtype.kind in "biuf":
        return ValueStack(np.array(elements))
    elif kind is dict:
        keys = tuple(first)
        if keys and all(tuple(element) == keys for element in elements):
            return DictStack(keys, tuple(pack_stack([element[key] for element in elements]) for key in keys))
    return elements


def unpack_stack(packed: Any) -> Sequence[Any]:
    """Return what was packed, as a list, or as the array that it was.

    The rows may be written to, whatever the array was that arrived.
    """
    if isinstance(packed, ValueStack):
        rows = packed.rows
        return list(rows if rows.flags.writeable else rows.copy())
    if isinstance(packed, DictStack):
        columns = [unpack_stack(values) for values in packed.values]
        return [dict(zip(packed.keys, values, strict=True)) for values in zip(*columns, strict=True)]
    rows_or_list: Sequence[Any] = packed
    return rows_or_list
