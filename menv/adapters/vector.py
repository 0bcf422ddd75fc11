"""A `VectorEnv`, which steps all its sub-environments with lists, as a `BaseEnv`.

A finished sub-environment is reset by `reset_at` in the same poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from menv import rng
from menv.adapters.poll_events import check_info
from menv.adapters.validation import as_rewards, env_reward_labels
from menv.adapters.vector_base import LockstepEnvs
from menv.base_env import EnvId, IntArray, VectorStep
from menv.errors import ContractError, MenvError, raised_by_envs
from menv.spaces import as_flag, close_env, how_many, last_obs
from menv.vector_env import VectorEnv

_FIVE = ("obs", "rewards", "terminateds", "truncateds", "infos")


class VectorEnvs(LockstepEnvs):
    """Steps one `VectorEnv`; `seed` gives every reset its own seed, None resets without seeds."""

    def __init__(self, env: VectorEnv, *, seed: int | None = None, first_index: int = 0) -> None:
        super().__init__(env.num_envs)
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._seed = seed
        self._first_index = first_index

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the sub-environments if they are separate objects."""
        found = self.env.get_sub_environments()
        return dict(enumerate(found)) if as_dict else list(found)

    def try_render(self, env_id: EnvId | None = None) -> Any:
        """Render one sub-environment, the first by default."""
        return self.env.try_render_at(self.index_of(env_id or 0))

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Replace one sub-environment or all; their next rows begin a new episode."""
        self._refuse_two_drivers()
        for index in self.indices(env_id):
            self._call("restart_at", index)
            if self._started:
                self._reset_one(index, None, {})

    def _reset_one(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Reset one sub-environment, unless it was just reset."""
        if self._untouched(index) and seed is None and options is None:
            return
        self._truncate(np.array([index]))
        obs, info = self._reset_at(index, seed, options or None)
        self._obs, self._infos = list(self._obs), list(self._infos)
        self._obs[index], self._infos[index] = obs, info
        self._rewards[index] = 0.0
        self._begin(np.array([index]))
        self._renew(index)

    def _reset_all(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Sequence[Any]]:
        seeds = None
        if seed is not None or self._seed is not None:
            seeds = [self._seed_of(index) if seed is None else seed + index for index in range(self.num_envs)]
        if seeds is None and options is None:
            result = self._call("vector_reset")
        else:
            result = self._call("vector_reset", seeds=seeds, options=options and [options] * self.num_envs)
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._wrong("vector_reset", result, "two lists (obs, infos)")
        self._check_lists("vector_reset", _FIVE[::4], result)
        return list(result[0]), as_infos(result[1], "vector_reset")

    def _step_all(self, actions: Any, slots: IntArray | None) -> VectorStep:
        result = self._call("vector_step", list(actions))
        if not isinstance(result, tuple | list) or len(result) != 5:
            raise self._wrong("vector_step", result, f"five lists ({', '.join(_FIVE)})")
        self._check_lists("vector_step", _FIVE, result)
        obs, raw_rewards, terminateds, truncateds, infos = result
        rewards = as_rewards(raw_rewards, lambda: env_reward_labels("vector_step"))
        terminated, truncated = _flags(terminateds, "terminated"), _flags(truncateds, "truncated")
        over = terminated | truncated
        done = np.flatnonzero(over).tolist()
        obs, infos = list(obs), as_infos(infos, "vector_step")
        finals = [last_obs(obs[index], f"vector_step, env {index}") for index in done]
        final_infos = [infos[index] for index in done]
        for index in done:
            # The seed counts the step that was just taken, as for copies that step one by one.
            seed = None if self._seed is None else self._seed_of(index, 1)
            obs[index], infos[index] = self._reset_at(index, seed, None)
        flags = over if done else None
        return VectorStep(obs, rewards, terminated, truncated, infos, flags, None, finals, final_infos)

    def _close(self) -> None:
        close_env(self.env)

    def _reset_at(self, index: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        if seed is None and options is None:
            result = self._call("reset_at", index)
        else:
            result = self._call("reset_at", index, seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._wrong("reset_at", result, "(obs, info)")
        check_info(result[1], f"reset_at, env {index}")
        return result

    def _seed_of(self, index: int, more: int = 0) -> int:
        assert self._seed is not None
        return rng.reset_seed(self._seed, self._first_index + index, int(self.env_steps[index]) + more)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.env, method)(*args, **kwargs)
        except MenvError:
            raise
        except raised_by_envs() as error:
            # No frame below this one: the method does not accept these arguments.
            if isinstance(error, TypeError) and error.__traceback__ and error.__traceback__.tb_next is None:
                raise ContractError(
                    f"{type(self.env).__name__}.{method}: {error}, expected {_SIGNATURES[method]}; declare these "
                    "parameters"
                ) from error
            raise self._crash(f"{type(self.env).__name__}.{method}", error) from error

    def _check_lists(self, method: str, names: Sequence[str], lists: Sequence[Any]) -> None:
        for name, part in zip(names, lists, strict=True):
            counted = isinstance(part, Sequence) or (isinstance(part, np.ndarray) and part.ndim > 0)
            if not counted or len(part) != self.num_envs:
                got = f"{len(part)} values" if counted else how_many(part)
                raise ContractError(
                    f"{type(self.env).__name__}.{method}: returned {got} as {name}, expected {self.num_envs}, one for "
                    "each sub-environment; fix its return value"
                )


_SIGNATURES: Final = {
    "vector_reset": "vector_reset(self, *, seeds=None, options=None)",
    "reset_at": "reset_at(self, index, *, seed=None, options=None)",
    "vector_step": "vector_step(self, actions)",
    "restart_at": "restart_at(self, index)",
}


def as_infos(infos: Sequence[Any], where: str) -> list[Any]:
    """Return E info dicts, or raise a `ContractError` that names the sub-environment."""
    listed = list(infos)
    # One check of all types instead of one per info.
    if set(map(type, listed)) != {dict}:
        for index, info in enumerate(listed):
            check_info(info, f"{where}, env {index}")
    return listed


def _flags(flags: Any, name: str) -> npt.NDArray[np.bool_]:
    try:
        found = np.asarray(flags)
    except (TypeError, ValueError, RuntimeError):
        found = np.zeros((0, 0))
    if found.ndim == 1 and found.dtype.kind in "biuf":
        return found.astype(np.bool_)
    return np.array([as_flag(one, f"vector_step, env {i}: {name}") for i, one in enumerate(flags)], np.bool_)
