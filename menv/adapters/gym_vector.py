"""A `gymnasium.vector.VectorEnv` as a `BaseEnv`: arrays in, arrays out, no object per sub-environment.

All autoreset modes of gymnasium give the same episodes. With NEXT_STEP a finished sub-environment has no row in the
next poll, because its reset takes that step; with SAME_STEP and DISABLED its first row comes in the poll of its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from menv import rng
from menv.adapters.validation import as_flags, as_rewards, check_counts, env_reward_labels
from menv.adapters.vector import LockstepEnvs
from menv.base_env import EnvId, Flags, IntArray, VectorStep
from menv.env_calls import close_env, last_obs
from menv.errors import ConfigError, ContractError
from menv.spaces import own_copy

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
_NO_INFO: Mapping[str, Any] = {}
_OF_ENDS = frozenset(("final_obs", "_final_obs", "final_info", "_final_info"))


class GymVectorEnvs(LockstepEnvs):
    """Steps one vectorised gymnasium environment.

    `seed` is for the first reset only: later ones continue with the environment's own generators.
    """

    def __init__(
        self, env: gym.vector.VectorEnv[Any, Any, Any], *, seed: int | None = None, first_index: int = 0
    ) -> None:
        super().__init__(env.num_envs)
        self.env = env
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self._mode = autoreset_mode(env)
        self._seed = None if seed is None else rng.reset_seed(seed, first_index, 0)
        self._batch_actions = env.action_space
        self._name = type(env).__name__
        kinds = gym.spaces.Box | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
        self._action_dtype = env.action_space.dtype if isinstance(env.action_space, kinds) else None
        # [E] sub-environments that the next step resets.
        self._due: Flags | None = None
        self._step_infos: Mapping[str, Any] = _NO_INFO
        self._last_actions: npt.NDArray[Any] | None = None

    def get_sub_environments(self, as_dict: bool = False) -> Any:
        """Return the sub-environments if they are objects of this process."""
        found = list(getattr(self.env.unwrapped, "envs", ()))
        return dict(enumerate(found)) if as_dict else found

    def try_render(self, env_id: EnvId | None = None) -> Any:
        index = self.index_of(env_id or 0)
        frames = self.env.render()
        return frames if frames is None else frames[index]

    def try_restart(self, env_id: EnvId | None = None) -> None:
        """Refuse: the sub-environments belong to `env`."""
        raise ConfigError(
            f"try_restart: {type(self.env).__name__} creates its own sub-environments, expected an environment that "
            "menv creates; use num_envs_per_worker with the single environment instead"
        )

    def start_from(self, env_steps: IntArray) -> None:
        """Begin again with another seed; see `LockstepEnvs.start_from`."""
        super().start_from(env_steps)
        if self._seed is not None:
            self._seed = rng.reset_seed(self._seed, 0, int(env_steps.sum()))

    def _reset_all(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Sequence[Any]]:
        seed, self._seed = self._seed if seed is None else seed, None
        result = self._call("reset", seed=seed, options=options)
        obs, infos = self._returned(result, 2, "reset", "(obs, infos)")
        self._due = None
        return self._rows(obs), self._infos_of(self._by_name(infos, "reset"))

    def _step_all(self, actions: object, slots: IntArray | None) -> VectorStep:
        result = self._call("step", self._all_actions(actions, slots))
        self._returned(result, 5, "step", "(obs, rewards, terminations, truncations, infos)")
        obs, raw_rewards, terminated, truncated, infos = result
        if type(infos) is not dict:
            infos = self._by_name(infos, "step")
        rewards = raw_rewards
        if (
            type(raw_rewards) is not np.ndarray
            or raw_rewards.shape != self._all_slots.shape
            or raw_rewards.dtype.kind != "f"
        ):
            self._check_counts("step", ["rewards"], [raw_rewards])
            rewards = as_rewards(raw_rewards, lambda: env_reward_labels(f"{self._name}.step"))
        terminated = self._flags("terminations", terminated)
        truncated = self._flags("truncations", truncated)
        done: Flags = np.logical_or(terminated, truncated)
        begun = None if self._due is None else self._due.nonzero()[0]
        self._due = None
        step = VectorStep(self._rows(obs), rewards, terminated, truncated, self._infos_of(infos), None, begun)
        # A tenth of the time of `done.any()`.
        if 1 in done.tobytes():
            step.done = done
            self._add_ends(step, infos)
        return step

    def _flags(self, name: str, flags: Any) -> npt.NDArray[Any]:
        """Return [E] flags, as numbers."""
        if type(flags) is np.ndarray and flags.shape == (self.num_envs,) and flags.dtype.kind in "biuf":
            return flags
        self._check_counts("step", [name], [flags])
        return as_flags(flags, f"{self._name}.step: {name}")

    def _add_ends(self, step: VectorStep, infos: Mapping[str, Any]) -> None:
        done = step.done
        assert done is not None
        if self._mode == NEXT_STEP:
            self._due = done
            return
        which = np.flatnonzero(done).tolist()
        if self._mode == SAME_STEP:
            step.finals, step.final_infos = self._finals_in(infos, which)
            # The final entries belong to the episode before.
            step.infos = self._infos_of({name: infos[name] for name in infos if name not in _OF_ENDS})
            return
        self._step_infos = infos
        step.finals = [own_copy(step.obs[index]) for index in which]
        step.final_infos = [info_of(infos, index) for index in which]
        # The reset may write into the arrays that the step returned.
        step.rewards, step.terminated, step.truncated = (
            np.array(part) for part in (step.rewards, step.terminated, step.truncated)
        )

    def _reset_done(self, step: VectorStep, done: Flags) -> None:
        if self._mode == DISABLED:
            step.obs, reset_infos = self._reset_some(done)
            step.infos = VectorInfos(self._step_infos, self._all_slots, (reset_infos, done))

    def _reset_one(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Do nothing if the next step resets the sub-environment anyway, or if it was just reset."""
        if self._due is None or not self._due[index] or seed is not None or options is not None:
            super()._reset_one(index, seed, options)

    def _reset_some(self, done: Flags) -> tuple[Any, Mapping[str, Any]]:
        """Reset the sub-environments that are done, in mode DISABLED."""
        result = self._call("reset", options={"reset_mask": done})
        obs, infos = self._returned(result, 2, "reset with a reset_mask", "(obs, infos)")
        return self._rows(obs), self._by_name(infos, "reset with a reset_mask")

    def _finals_in(
        self, infos: Mapping[str, Any], which: Sequence[int]
    ) -> tuple[list[Any], list[Mapping[str, Any]]]:
        given = final_obs(infos, which[0], f"{self._name}.step")
        details: Any = infos.get("final_info", _NO_INFO)
        # A list, as gymnasium returns it, or a batch of a Dict space like the observations.
        finals = self._rows(given) if isinstance(given, Mapping) else given
        return (
            [last_obs(finals[index], f"{self._name}.step, env {index}") for index in which],
            # A dict of arrays, or one dict per sub-environment.
            [
                info_of(details, index) if isinstance(details, Mapping) else details[index] or _NO_INFO
                for index in which
            ],
        )

    def _rows(self, obs: object) -> Any:
        return rows_of(self.env, obs, self._name)

    def _by_name(self, infos: object, method: str) -> Mapping[str, Any]:
        return by_name(infos, self.num_envs, f"{self._name}.{method}")

    def _infos_of(self, infos: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return VectorInfos(infos, self._all_slots) if infos else ()

    def _all_actions(self, actions: object, slots: IntArray | None) -> Any:
        """Return actions of the batched space; sub-environments that are reset get any valid one."""
        dtype = self._action_dtype
        if dtype is None:
            return self._nested_actions(actions, self._all_slots if slots is None else slots)
        if slots is None or len(slots) == self.num_envs:
            self._last_actions = np.asarray(actions, dtype)
            return self._last_actions
        space: Any = self._batch_actions
        full = np.zeros(space.shape, space.dtype) if self._last_actions is None else self._last_actions.copy()
        if len(slots):
            full[slots] = actions
        return full

    def _nested_actions(self, actions: Any, slots: IntArray) -> Any:
        spare = self.action_space.sample() if len(slots) < self.num_envs else None
        by_env = [spare] * self.num_envs
        for slot, action in zip(slots.tolist(), actions, strict=True):
            by_env[slot] = action
        empty: Any = create_empty_array(self.action_space, self.num_envs)
        return concatenate(self.action_space, by_env, empty)

    def _close(self) -> None:
        close_env(self.env)


def autoreset_mode(env: gym.vector.VectorEnv[Any, Any, Any]) -> str:
    """Return the autoreset mode of an environment, one of the three constants above."""
    mode = env.metadata.get("autoreset_mode") if isinstance(env.metadata, Mapping) else None
    if mode is None and not hasattr(gym.vector, "AutoresetMode"):
        # The only mode of gymnasium 1.0, which had no name for it.
        return NEXT_STEP
    name = getattr(mode, "value", mode)
    if name not in (NEXT_STEP, SAME_STEP, DISABLED):
        raise ConfigError(
            f"{type(env).__name__}: metadata['autoreset_mode'] is {mode!r:.40}, expected an AutoresetMode; set it to "
            "what the environment does with a sub-environment that is done"
        )
    return str(name)


def rows_of(env: gym.vector.VectorEnv[Any, Any, Any], obs: object, where: str) -> Any:
    """Return the E observations of a batch, as an array if possible, else as a list; `where` begins errors."""
    rows = obs
    if not isinstance(obs, np.ndarray):
        # What cannot be iterated is counted below.
        with suppress(TypeError, LookupError, ValueError):
            rows = list(iterate(env.observation_space, obs))
    elif obs.shape[:1] == (env.num_envs,):
        return obs
    check_counts(("obs",), (rows,), env.num_envs, where)
    return rows


def final_obs(infos: Mapping[str, Any], index: int, where: str) -> Any:
    """Return the last observations in infos of an autoreset; `index` is a sub-environment that is done."""
    if infos.get("final_obs") is None:
        raise ContractError(
            f"{where}: env {index} is done and infos has no 'final_obs', expected one with AutoresetMode.SAME_STEP; "
            "put the last observation there",
            "ME099",
        )
    return infos["final_obs"]


class VectorInfos(Sequence[Mapping[str, Any]]):
    """The infos of a vectorised gymnasium environment, a dict of arrays, as one dict per row, built when it is read.

    Args:
        infos: As gymnasium returns them, with a mask under `_<key>` for each key.
        indices: [R] sub-environments of the rows.
        resets: The infos of a later reset, and [E] True for the sub-environments that it reset.
    """

    __slots__ = ("_indices", "_infos", "_resets")

    def __init__(
        self,
        infos: Mapping[str, Any],
        indices: IntArray,
        resets: tuple[Mapping[str, Any], npt.NDArray[np.bool_]] | None = None,
    ) -> None:
        self._infos = infos
        self._indices = indices
        self._resets = resets

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: Any) -> Any:
        """Return the info at a place, or the infos at several: a slice or an array."""
        if isinstance(place, slice | np.ndarray):
            return VectorInfos(self._infos, self._indices[place], self._resets)
        return self._of(int(self._indices[place]))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(self._of, self._indices.tolist())

    @property
    def names(self) -> Collection[str]:
        """The names of all entries."""
        return self._infos.keys() if self._resets is None else {*self._infos, *self._resets[0]}

    def _of(self, index: int) -> Mapping[str, Any]:
        if self._resets is not None and self._resets[1][index]:
            return info_of(self._resets[0], index)
        return info_of(self._infos, index)


def info_of(infos: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """Return what a dict of arrays says about one sub-environment; values without a mask belong to all."""
    found: dict[str, Any] = {}
    for name, values in infos.items():
        mask = infos.get(f"_{name}")
        is_mask = str(name).startswith("_") and name[1:] in infos
        try:
            if is_mask or (mask is not None and not mask[index]):
                continue
            if isinstance(values, dict):
                found[name] = info_of(values, index)
            else:
                found[name] = values[index] if isinstance(values, np.ndarray | list | tuple) else values
        except (IndexError, TypeError) as error:
            raise ContractError(
                f"env {index} step: infos have no entry for it in {name!r} ({error}), expected an array of one value "
                f"for each sub-environment, and one of flags, {'_' + name!r}, if only some have it; fix its infos"
            ) from error
    return found


def by_name(infos: Any, num_envs: int, where: str) -> Mapping[str, Any]:
    """Return infos as a dict of arrays; gymnasium's `DictInfoToList` gives a list of dicts."""
    if isinstance(infos, Mapping):
        return infos
    listed = isinstance(infos, list | tuple)
    if infos is None or (listed and not infos):
        return {}
    if not listed or [isinstance(info, Mapping) for info in infos] != [True] * num_envs:
        size = f" of {len(infos)}" if listed else ""
        raise ContractError(
            f"{where}: returned infos that are a {type(infos).__name__}{size}, expected a dict of arrays, or a list of "
            f"{num_envs} dicts; fix its return value",
            "ME029",
        )
    names = dict.fromkeys(chain.from_iterable(infos))
    values = {name: [info.get(name) for info in infos] for name in names}
    return {**values, **{f"_{name}": [name in info for info in infos] for name in names}}
