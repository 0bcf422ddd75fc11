"""A sub-environment in another process: a local adapter of it, whose methods the driver requests.

An engine creates an `EnvServer` there, and a `RemoteEnvServer` in the driver sends it requests. Stepping, resetting,
seeding, the handling of crashes and the checks of answers are the same as in the driver, because the same adapter does
them. Observations and actions travel as few arrays (`pack_stack`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from menv import rng
from menv.adapters.convert import to_local_base_env
from menv.adapters.local_envs import LocalEnvs
from menv.adapters.poll_events import PollEvents
from menv.base_env import AgentId, FloatArray, IntArray, Ready
from menv.env_calls import call_method
from menv.errors import ConfigError, EnvFault, MenvError
from menv.workers.watchdog import Watchdog, creation


class ServerUpdate(NamedTuple):
    """What a poll of a server's adapter returned, with the numbers that sub-environment and slots have in the driver.

    `slots` are [R], None if the last update had the same. `obs` holds R packed observations, `rewards` is [R], `infos`
    is None where all are empty. `held` are rewards that wait for their agent's next row. `events` is everything else,
    None where nothing has happened, and `start` is the env step at the last reset. `paused` is the adapter's.
    """

    slots: Any
    obs: Any
    rewards: FloatArray
    env_steps: int
    infos: Sequence[Mapping[str, Any]] | None
    held: Mapping[AgentId, float]
    events: Any
    start: int
    paused: bool = False


class EnvServer:
    """Sub-environment `index` of the `count` of a `RemoteEnvs`: its slots are `index`, `index + count` and so on.

    `tolerated` is the number of crashes in a row that do not end the run; None never re-creates it. The process ends
    when a call takes longer than `env_timeout`; None waits forever.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        index: int,
        count: int,
        seed: int | None,
        first_index: int,
        tolerated: int | None,
        env_timeout: float | None,
    ) -> None:
        self._index = index
        self._count = count
        self._seed = None if seed is None else rng.key(seed, first_index + index)
        if self._seed is not None:
            rng.seed_process(self._seed)
        with creation(env_timeout):
            env = make_env(index)
        base_env = to_local_base_env(
            env, lambda _: make_env(index), seed=seed, first_index=first_index + index,
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
        self._calls = 0
        self._guard = Watchdog(env_timeout, lambda: self._calls + int(base_env.env_steps[0]))

    def begin(self, env_steps: int) -> ServerUpdate:
        """Begin an episode at a count of env steps; see `LocalEnvs.begin_at`."""
        self._slots = None
        if self._seed is not None:
            # A replacement must not repeat the random numbers of the lost process.
            rng.seed_process(self._seed, env_steps)
        with self._called():
            self._envs.begin_at({0: env_steps})
        return self._update()

    def step(self, actions: Any, pauses_at_ends: bool) -> ServerUpdate:
        """Send packed actions for the rows of the last update, and return the next update."""
        with self._called():
            self._envs.send_actions(self._slots, unpack_stack(actions))
        return self.poll(pauses_at_ends)

    def poll(self, pauses_at_ends: bool) -> ServerUpdate:
        """Return the next update, or the rest of one that has paused."""
        self._envs.pauses_at_ends = pauses_at_ends
        return self._update()

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any, ServerUpdate | None]:
        """Reset the sub-environment; return `(obs, infos)` by agent, and the update.

        There is none where the episode has just begun: its rows wait already.
        """
        with self._called():
            obs, infos = self._envs.try_reset(0, seed=seed, options=options)
        before, update = self._slots, self._update()
        if not len(update.rewards):
            self._slots = before
            return obs[0], infos[0], None
        return obs[0], infos[0], update

    def restart(self, has_begun: bool) -> ServerUpdate | None:
        """Re-create the sub-environment; without an update if no episode has begun."""
        with self._called():
            self._envs.try_restart(0)
        return self._update() if has_begun else None

    def render(self) -> Any:
        """Render the sub-environment."""
        with self._called():
            return self._envs.try_render(0)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of the sub-environment."""
        with self._called():
            return call_method(self._envs.get_sub_environments()[0], method, self._index, args)

    def stop(self) -> None:
        """Close the sub-environment."""
        with self._called():
            self._envs.stop()

    def _update(self) -> ServerUpdate:
        with self._called():
            ready = self._envs.poll()
        slots = None if ready.slots is self._slots else ready.slots * self._count + self._index
        self._slots = ready.slots
        envs = self._envs
        infos = ready.infos if ready.infos is not None and any(ready.infos) else None
        return ServerUpdate(
            slots, pack_stack(ready.obs), ready.rewards, int(ready.env_steps[0]), infos,
            envs.held_rewards().get(0, {}), self._events(ready), envs.episode_start(0), envs.paused,
        )  # fmt: skip

    def _events(self, ready: Ready) -> PollEvents | None:
        """Return the events of a `Ready` with the driver's numbers; None without any."""
        found = (
            ready.ended, ready.unclaimed, ready.episodes, ready.joined, ready.faults, ready.shared_infos,
        )  # fmt: skip
        if not any(found):
            return None
        return PollEvents(*([*map(self._renumbered, entries)] for entries in found))

    def _renumbered(self, entry: Any) -> Any:
        changes: dict[str, Any] = {"env_id": self._index}
        if "env_index" in entry._fields:
            changes["env_index"] = self._index
        if "slot" in entry._fields:
            changes["slot"] = entry.slot * self._count + self._index
        if isinstance(entry, EnvFault):
            where = f" in {entry.where} of env "
            message, _, place = entry.line.rpartition(f"{where}0")
            changes["line"] = f"{message}{where}{self._index}{place}"
        return entry._replace(**changes)

    @contextmanager
    def _called(self) -> Iterator[None]:
        """Watch a call of the sub-environment, and replace its number in the message of an error by the driver's."""
        self._calls += 1
        try:
            with self._guard:
                yield
        except MenvError as error:
            if error._fault is not None:
                error._fault = self._renumbered(error._fault)
            if error.args:
                # Only the first one is menv's; later ones may be of what an environment said.
                error.args = (str(error.args[0]).replace("env 0", f"env {self._index}", 1), *error.args[1:])
            raise


class PackedStack(NamedTuple):
    """Elements of one type and shape as one array, a row each; of dicts with the same `keys` each key's values."""

    values: Any
    keys: tuple[Any, ...] | None = None


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
            return PackedStack(np.array(elements))
    elif isinstance(first, np.generic) and first.dtype.kind in "biuf":
        return PackedStack(np.array(elements))
    elif kind is dict:
        keys = tuple(first)
        if keys and all(tuple(element) == keys for element in elements):
            return PackedStack([pack_stack([element[key] for element in elements]) for key in keys], keys)
    return elements


def unpack_stack(packed: Any) -> Sequence[Any]:
    """Return what `pack_stack` packed, with writable rows."""
    if not isinstance(packed, PackedStack):
        elements: Sequence[Any] = packed
        return elements
    rows, keys = packed
    if keys is None:
        return list(rows if rows.flags.writeable else rows.copy())
    columns = [unpack_stack(values) for values in rows]
    return [dict(zip(keys, values, strict=True)) for values in zip(*columns, strict=True)]
