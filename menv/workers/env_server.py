"""Sub-environments in another process: a local adapter of a few of them, whose methods the driver requests.

An engine creates an `EnvServer` there, and a `RemoteEnvServer` in the driver sends it requests. Stepping, resetting,
seeding and the handling of crashes are the same as in the driver, because the same adapter does them. Observations and
actions travel as few arrays (`pack_stack`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from menv import rng
from menv.adapters.convert import to_local_base_env
from menv.adapters.local_envs import LocalEnvs
from menv.adapters.poll_events import PollEvents
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
from menv.env_calls import call_method
from menv.errors import ConfigError, EnvFault, MenvError


class ServerUpdate(NamedTuple):
    """The answer to a step: a `Ready` in the form in which it travels.

    `slots` are [R], None if the last update had the same. `obs` holds R packed observations, `rewards` is [R],
    `env_steps` is [k], `infos` is None where all are empty. `held` are rewards that wait for their agent's next row, by
    sub-environment and agent. `events` is everything else, None where nothing has happened, and `starts` [k] are the
    env steps at the last resets, as far as they have changed. `paused` is the adapter's.

    Sub-environments have their numbers among all servers of a `RemoteEnvs`; slots are the server's.
    """

    slots: IntArray | None
    obs: Any
    rewards: FloatArray
    env_steps: IntArray
    infos: Sequence[Mapping[str, Any]] | None
    held: Mapping[int, Mapping[AgentId, float]]
    events: PollEvents | None
    starts: Sequence[int]
    paused: bool = False


Numbered = TypeVar("Numbered", Join, EpisodeEnd, Unclaimed)
Named = TypeVar("Named", End, SharedInfo)


def renumbered(ready: Ready, offset: int) -> PollEvents | None:
    """Return the events of a `Ready` with `offset` added to the numbers of sub-environments."""
    events = (ready.joined, ready.ended, ready.episodes, ready.unclaimed, ready.faults, ready.shared_infos)
    if not any(events):
        return None

    def numbered(entries: Sequence[Numbered]) -> list[Numbered]:
        return [one._replace(env_id=(now := one.env_index + offset), env_index=now) for one in entries]

    def named(entries: Sequence[Named]) -> list[Named]:
        return [one._replace(env_id=int(one.env_id) + offset) for one in entries]  # type: ignore[call-overload]

    return PollEvents(
        named(ready.ended), numbered(ready.unclaimed), numbered(ready.episodes), numbered(ready.joined),
        [_renumber_fault(one, offset) for one in ready.faults], named(ready.shared_infos),
    )  # fmt: skip


def _renumber_fault(fault: EnvFault, offset: int) -> EnvFault:
    index, where = fault.env_index + offset, f" in {fault.where} of env "
    message, _, place = fault.line.rpartition(f"{where}{fault.env_id}")
    return fault._replace(env_id=index, env_index=index, line=f"{message}{where}{index}{place}")


class EnvServer:
    """The k sub-environments of a `RemoteEnvs` that live in this process, beginning at number `first`.

    `make_env` takes numbers among all servers. `tolerated` is the number of crashes in a row that do not end the run;
    None never re-creates a sub-environment.
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
        self._has_begun = False

    def begin(self, env_steps: Mapping[int, int]) -> ServerUpdate:
        """Begin episodes in sub-environments, each at its count of env steps; see `LocalEnvs.begin_at`."""
        self._has_begun, self._slots = True, None
        if self._seed is not None:
            # A replacement must not repeat the random numbers of the lost process.
            rng.seed_process(self._seed, *env_steps.values())
        return self._update_after(lambda: self._envs.begin_at(env_steps))

    def step(self, slots: IntArray | None, actions: Any, pauses_at_ends: bool) -> ServerUpdate:
        """Send packed actions for slots, None for all rows of the last update, and return the next update."""
        slots = self._slots if slots is None else slots
        self._envs.pauses_at_ends = pauses_at_ends
        return self._update_after(lambda: self._envs.send_actions(slots, unpack_stack(actions)))

    def resume_poll(self) -> ServerUpdate:
        """Return the rest of a poll that has paused."""
        return self._update_after(lambda: None)

    def reset(
        self, place: int, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, Any, ServerUpdate]:
        """Reset a sub-environment; return `(obs, infos)` by agent, and the update."""
        found: list[Any] = []
        update = self._update_after(
            lambda: found.extend(self._envs.try_reset(place, seed=seed, options=options))
        )
        return found[0][place], found[1][place], update

    def restart(self, place: int) -> ServerUpdate | None:
        """Re-create a sub-environment; without an update if no episode has begun."""
        if not self._has_begun:
            self._envs.try_restart(place)
            return None
        return self._update_after(lambda: self._envs.try_restart(place))

    def render(self, place: int) -> Any:
        """Render a sub-environment."""
        return self._envs.try_render(place)

    def call(self, place: int, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of a sub-environment."""
        env = self._envs.get_sub_environments()[place]
        return call_method(env, method, self._first + place, args)

    def stop(self) -> None:
        """Close all sub-environments."""
        try:
            self._envs.stop()
        except MenvError as error:
            self._renumber(error)
            raise

    def _update_after(self, act: Callable[[], Any]) -> ServerUpdate:
        try:
            act()
            ready = self._envs.poll()
        except MenvError as error:
            self._renumber(error)
            raise
        slots = None if ready.slots is self._slots else ready.slots
        self._slots = ready.slots
        envs, first = self._envs, self._first
        events = renumbered(ready, first)
        starts = [] if events is None else [envs.episode_start(place) for place in range(envs.num_envs)]
        held = {int(place) + first: rewards for place, rewards in envs.held_rewards().items()}  # type: ignore[call-overload]
        infos = ready.infos if ready.infos is not None and any(ready.infos) else None
        return ServerUpdate(
            slots,
            pack_stack(ready.obs),
            ready.rewards,
            ready.env_steps,
            infos,
            held,
            events,
            starts,
            envs.paused,
        )

    def _renumber(self, error: MenvError) -> None:
        """Replace the number of a sub-environment in a message by its number among all servers."""
        if error._fault is not None:
            error._fault = _renumber_fault(error._fault, self._first)
        for place in range(self._envs.num_envs):
            prefix = f"env {place} "
            if error.args and str(error.args[0]).startswith(prefix):
                error.args = (
                    f"env {self._first + place} {str(error.args[0])[len(prefix) :]}",
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
    """Return a list of elements, or the rows of an array, as few arrays."""
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
    """Return what `pack_stack` packed, with writable rows."""
    if isinstance(packed, ValueStack):
        rows = packed.rows
        return list(rows if rows.flags.writeable else rows.copy())
    if isinstance(packed, DictStack):
        columns = [unpack_stack(values) for values in packed.values]
        return [dict(zip(packed.keys, values, strict=True)) for values in zip(*columns, strict=True)]
    rows_or_list: Sequence[Any] = packed
    return rows_or_list
