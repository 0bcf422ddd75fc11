"""`Policy`: chooses actions for agents. `RandomPolicy` is the simplest one.

The policies of an algorithm are networks, which the sampler runs in batches. A custom policy subclasses `Policy` and is
named by `PolicySpec(policy_class=...)`; it gets the environment's own observations and returns the environment's own
actions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import rng
from menv.errors import ConfigError, ContractError
from menv.migration_hints import OldAttribute
from menv.plain_files import folder_given
from menv.policy_spec import SpecConfig
from menv.spaces import flags_of, flat_mask, has_order

if TYPE_CHECKING:
    from menv.episode import Episode
    from menv.sample_batch import SampleBatch


class RowDraws:
    """Random numbers for R rows that depend on the agent and the env step, not on the batch.

    Args:
        keys: [R] one key per row.
        steps: [R] env steps since the start of each row's sub-environment.
    """

    def __init__(self, keys: rng.Keys, steps: npt.NDArray[np.int64]) -> None:
        self.keys = keys
        self.steps = steps

    def uniforms(self, width: int) -> npt.NDArray[np.float32]:
        """Return [R, width] uniforms in [0, 1)."""
        return rng.uniforms(self.keys, self.steps, width)

    def normals(self, width: int) -> npt.NDArray[np.float32]:
        """Return [R, width] standard normals."""
        return rng.normals(self.keys, self.steps, width)


def weights_of(policy: Policy) -> Mapping[str, Any]:
    """Return a policy's weights by name; empty if an RLlib-style `get_weights` returns None."""
    return policy.get_weights() or {}


def parts_given(where: str, state: Any) -> list[Any]:
    """Return the parts of a hidden state; `where` begins the message.

    Raises:
        ContractError: It is not a list of arrays.
    """
    if not has_order(state):
        raise ContractError(
            f"{where}: the state is a {type(state).__name__}, expected a list of arrays, such as "
            "list(state.values()); pass policy.get_initial_state() first, then the returned state"
        )
    return list(state)


def one_row(where: str, state: Any) -> list[Any]:
    """Return one agent's hidden state as `state_batches` of one row."""
    return [np.asarray(part)[None] for part in parts_given(where, state)]


def _counted(set_weights: Callable[[Policy, Mapping[str, Any]], None]) -> Any:
    @functools.wraps(set_weights)
    def call(self: Policy, weights: Mapping[str, Any]) -> None:
        set_weights(self, weights)
        self._weights_version += 1

    return call


class Policy:
    """A policy that chooses actions for batches of observations.

    Attributes:
        observation_space: Space of the observations.
        action_space: Space of the actions.
        config: Its `PolicySpec.config`; a policy that an algorithm trains finds the algorithm's settings there as well.
    """

    algorithm: ClassVar[str | None] = None
    """Name of the algorithm that trains policies of this class, which have its network; None if they need
    no algorithm."""

    view_requirements = OldAttribute(
        "write menv.connectors.ViewRequirementAgentConnector into agent_connectors of the config"
    )

    _weights_version = 0
    """How often `set_weights` was called; workers receive the weights again when it has grown."""

    def __init_subclass__(cls, **settings: Any) -> None:
        """Let `set_weights` count its calls, so that processes know which weights changed."""
        super().__init_subclass__(**settings)
        if "set_weights" in vars(cls):
            cls.set_weights = _counted(cls.set_weights)  # type: ignore[method-assign]

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = SpecConfig(config or {})

    def __repr__(self) -> str:
        name = f"{self.policy_id!r}, " if hasattr(self, "policy_id") else ""
        return f"{type(self).__name__}({name}{self.observation_space} -> {self.action_space})"

    def compute_actions(
        self,
        obs_batch: Sequence[Any],
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return `(actions, states, fetches)` for R observations.

        The sampler passes the arguments that a subclass names or accepts as `**kwargs`; other callers may leave them
        out.

        Args:
            obs_batch: R elements of `observation_space`.
            state_batches: An [R, ...] array for each part of the hidden states, as returned for the same agents' last
                rows or by `get_initial_state`; empty for feed-forward policies.
            prev_action_batch: [R, ...] previous actions of the same trajectories, zeros before the first; a list, with
                None before the first, if the space is neither Discrete, MultiDiscrete nor Box.
            prev_reward_batch: [R] their rewards, 0 before the first action.
            info_batch: R info dicts that came with the observations.
            episodes: R `Episode` objects.
            explore: False asks for the most likely action; None means the policy's default.
            timestep: Env steps sampled so far.

        Returns:
            R actions of `action_space`, the next hidden states (a list of [R, ...] arrays), and anything else by name,
            R values each. States and fetches become columns of the batch: `state_in_0`, `state_out_0` and so on, and
            fetches under their names, such as `vf_preds`. Hidden states are kept across rollout fragments and reset
            when the agent ends or returns.
        """
        raise ContractError(
            f"{type(self).__name__}.compute_actions: not defined, expected (actions, states, fetches); "
            "define it in your Policy subclass"
        )

    def act(self, obs: Any, *, state: Sequence[Any] | None = None, explore: bool = False) -> Any:
        """Return the action for one observation.

        Args:
            obs: An element of `observation_space`.
            state: Hidden state of a recurrent policy: `get_initial_state()` at first, then the state that the last call
                returned.
            explore: Whether to sample the action; False returns the most likely one.

        Returns:
            The action, in the environment's form; with a state, `(action, state)`. Numbers are of numpy: for JSON write
            `int(policy.act(obs))` of a `Discrete` space, `policy.act(obs).tolist()` of an array.

        Raises:
            ContractError: The policy is recurrent and no state is given; or its connectors keep data of past
                observations, such as stacked frames: use `menv.local_policy_inference` then.
        """
        if state is None and parts_given("act: get_initial_state", self.get_initial_state()):
            raise self.without_state()
        batches = [np.asarray(part)[None] for part in state or []]
        actions, states, _ = self.compute_actions([obs], batches, explore=explore)
        return actions[0] if state is None else (actions[0], [part[0] for part in states])

    def without_state(self) -> ContractError:
        """Return the error for a missing hidden state."""
        return ContractError(
            f"policy {getattr(self, 'policy_id', type(self).__name__)!r}: act needs a state, because the policy is "
            "recurrent; pass state=policy.get_initial_state() first, then the returned state"
        )

    def export_checkpoint(self, folder: str | Path, *, trained: Mapping[str, Any] | None = None) -> Path:
        """Write the policy into a new folder, which `from_checkpoint` reads without torch.

        Args:
            folder: Must not exist; it is written completely or not at all.
            trained: JSON values about the training, such as `{"algorithm": "PPO", "env_steps": 1000}`.

        Returns:
            The folder.

        Raises:
            ConfigError: The folder exists, or the policy or its network is custom code, which is never written.
        """
        raise ConfigError(
            f"policy {getattr(self, 'policy_id', type(self).__name__)!r}: {type(self).__name__} is custom code, which "
            "cannot be saved, expected a policy with a stock network; save get_weights() with safetensors instead"
        )

    @overload
    @staticmethod
    def from_checkpoint(
        checkpoint: str | Path, policy_ids: None = None, *, snapshot: str | None = None
    ) -> Policy | dict[str, Policy]: ...

    @overload
    @staticmethod
    def from_checkpoint(
        checkpoint: str | Path, policy_ids: Iterable[str], *, snapshot: str | None = None
    ) -> dict[str, Policy]: ...

    @staticmethod
    def from_checkpoint(
        checkpoint: str | Path, policy_ids: Iterable[str] | None = None, *, snapshot: str | None = None
    ) -> Policy | dict[str, Policy]:
        """Return the policy that a folder holds, or the policies of a folder of several, ready to act.

        Nothing in the files is executed or imported, and neither torch nor onnx is needed. Every file is checked by its
        hash, and the policy by its golden outputs.

        Args:
            checkpoint: A folder that `export_checkpoint` wrote; a folder with a folder of each policy, directly or
                below `policies/`; or a training checkpoint: the folder of `save`, for the latest one, or a numbered
                folder in it.
            policy_ids: Which of several; None means all. The folder of one policy always gives that policy.
            snapshot: Of a training checkpoint with a league, the name of a snapshot, such as `snapshot_3`, or a level,
                `easy`, `medium` or `hard`: its policies in place of the run's.

        Returns:
            The policy; for a checkpoint or a folder of several, the policies by id or by folder name, without
            policies that only training can run.

        Raises:
            ConfigError: Something is missing, damaged, or written by a newer version.
        """
        from menv.inference.checkpoint_folder import read_policies

        return read_policies(folder_given("from_checkpoint", checkpoint), policy_ids, snapshot)

    def get_initial_state(self) -> list[Any]:
        """Return the initial hidden state of one agent; [] for a feed-forward policy."""
        return []

    def answer(
        self, obs_batch: Sequence[Any], row_draws: RowDraws, explore: bool | None, episodes: Sequence[Any]
    ) -> Sequence[Any]:
        """Return R actions; the sampler calls this if a subclass overrides it, else `compute_actions`.

        Override it instead of `compute_actions` to sample from `row_draws`: the same seed then gives the same actions
        however the rows are batched.
        """
        actions, _, _ = self.compute_actions(obs_batch, [], episodes=episodes, explore=explore)
        return actions  # type: ignore[no-any-return]

    def postprocess_trajectory(
        self,
        batch: SampleBatch,
        other_agent_batches: Mapping[Any, SampleBatch] | None = None,
        episode: Episode | None = None,
    ) -> SampleBatch:
        """Return the rows of one trajectory, with columns added or changed.

        Called in the process that learns, for each agent of this policy and each trajectory chunk in a fragment, before
        the algorithm adds its own columns: existing columns are kept. Costs nothing unless it is overridden.

        Args:
            batch: The T rows of the chunk; arrays may be changed in place.
            other_agent_batches: The rows of every other agent of the same episode in the same fragment, by agent id,
                whichever policy acted for it; read only. An agent that returned has all its trajectories in one batch.
                Rows with equal `env_t` belong to the same env step; agents need not have rows at the same steps. The
                last row of a trajectory that continues is held back until its reward is complete, and comes with the
                next fragment.
            episode: The episode; it may continue.

        Returns:
            A batch of the same T rows.
        """
        return batch

    def get_weights(self) -> dict[str, Any]:
        """Return the weights by name; a policy that does not learn has none."""
        return {}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Load weights that `get_weights` returned."""


def check_one_policy(where: str, policy: Any) -> None:
    """Refuse anything but one policy, such as a dict of several; `where` begins the message."""
    if not isinstance(policy, Policy):
        known = f" of {sorted(policy)[:8]}" if isinstance(policy, dict) else ""
        raise ConfigError(
            f"{where}: policy is a {type(policy).__name__}{known}, expected one Policy; select one from a dict by its "
            "id"
        )


class SamplingPolicy(Policy):
    """A policy whose `answer` needs only observations, `row_draws` and episodes.

    Without a sampler the random numbers depend on `config["seed"]` and the number of calls.
    """

    def compute_actions(
        self,
        obs_batch: Sequence[Any],
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return what `answer` returns with the random numbers of this call."""
        self._calls = getattr(self, "_calls", -1) + 1
        rows = len(obs_batch)
        keys = np.arange(rows, dtype=np.uint64) + np.uint64(rng.key(int(self.config.get("seed", 0)), 0))
        row_draws = RowDraws(keys, np.full(rows, self._calls, np.int64))
        return self.answer(obs_batch, row_draws, explore, episodes or ()), [], {}


MASK_KEY = "action_mask"


class RandomPolicy(SamplingPolicy):
    """Samples uniformly from the action space; never learns.

    An unbounded Box dimension is sampled from a standard normal. With an `"action_mask"` in the observations, or in
    the observations of a group's members, every allowed choice is equally likely. Without a sampler `config["seed"]`
    decides.
    """

    def answer(
        self, obs_batch: Sequence[Any], row_draws: RowDraws, explore: bool | None, episodes: Sequence[Any]
    ) -> Sequence[Any]:
        """Return R random actions that depend on `row_draws` alone."""
        mask = _masks(self.observation_space, self.action_space, obs_batch)
        uniforms = row_draws.uniforms(_width(self.action_space)).astype(np.float64)
        return _draw(self.action_space, uniforms, mask)


def _masks(space: gym.Space[Any], action_space: gym.Space[Any], obs_batch: Sequence[Any]) -> Any:
    """Return [R, M] flags, a list of them for each member of a group, or None without masks."""
    if isinstance(space, gym.spaces.Dict) and MASK_KEY in space.spaces:
        return np.stack([flat_mask(obs[MASK_KEY], action_space) for obs in obs_batch]) != 0
    if not isinstance(space, gym.spaces.Tuple) or not isinstance(action_space, gym.spaces.Tuple):
        return None
    if len(space.spaces) != len(action_space.spaces):
        return None
    pairs = zip(space.spaces, action_space.spaces, strict=True)
    return [_masks(own, actions, [obs[i] for obs in obs_batch]) for i, (own, actions) in enumerate(pairs)]


def _masks_of_parts(parts: Sequence[gym.Space[Any]], mask: Any) -> Sequence[Any]:
    if mask is None:
        return [None] * len(parts)
    ends = np.cumsum([flags_of(part) for part in parts])
    return mask if isinstance(mask, list) else np.split(mask, ends[:-1], axis=1)


def _width(space: gym.Space[Any]) -> int:
    """Return the number of uniforms that one element of `space` needs."""
    if isinstance(space, gym.spaces.Discrete):
        return 1
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return sum(_width(part) for part in _parts(space))
    if isinstance(space, gym.spaces.Box):
        return 2 * int(np.prod(space.shape))
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return int(np.prod(space.shape))
    raise ConfigError(
        f"RandomPolicy: cannot draw from {type(space).__name__}, expected Box, Discrete, MultiDiscrete, MultiBinary, "
        "Dict or Tuple; use your own Policy subclass"
    )


def _parts(space: gym.spaces.Dict | gym.spaces.Tuple[Any]) -> list[gym.Space[Any]]:
    return list(space.spaces.values()) if isinstance(space, gym.spaces.Dict) else list(space.spaces)


def _draw(space: gym.Space[Any], uniforms: npt.NDArray[np.float64], mask: Any = None) -> list[Any]:
    """Return R elements from [R, width] uniforms."""
    if isinstance(space, gym.spaces.Discrete):
        allowed = np.ones((len(uniforms), int(space.n)), np.bool_) if mask is None else mask
        return list((_pick(allowed, uniforms[:, 0]) + space.start).astype(space.dtype, copy=False))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return _draw_multi_discrete(space, uniforms, mask)
    if isinstance(space, gym.spaces.MultiBinary):
        return list((uniforms >= 0.5).astype(space.dtype).reshape(-1, *space.shape))
    if isinstance(space, gym.spaces.Box):
        return _draw_box(space, uniforms)
    assert isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)
    parts = _parts(space)
    cuts = np.cumsum([_width(part) for part in parts])[:-1]
    pieces = zip(parts, np.split(uniforms, cuts, axis=1), _masks_of_parts(parts, mask), strict=True)
    sampled = [_draw(part, own, flags) for part, own, flags in pieces]
    rows = zip(*sampled, strict=True)
    return (
        [dict(zip(space.spaces, row, strict=True)) for row in rows]
        if isinstance(space, gym.spaces.Dict)
        else list(rows)
    )


def _pick(allowed: npt.NDArray[np.bool_], uniforms: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the index of one allowed entry per row, each equally likely."""
    counts = allowed.cumsum(axis=1)
    wanted = np.floor(uniforms * counts[:, -1]) + 1
    picked: npt.NDArray[np.int64] = np.argmax(counts >= wanted[:, None], axis=1)
    return picked


def _draw_multi_discrete(
    space: gym.spaces.MultiDiscrete, uniforms: npt.NDArray[np.float64], mask: Any
) -> list[Any]:
    sizes = space.nvec.reshape(-1)
    cuts = np.cumsum(sizes)[:-1]
    masks = [None] * len(sizes) if mask is None else np.split(mask, cuts, axis=1)
    columns = [
        _pick(np.ones((len(uniforms), int(size)), np.bool_) if part is None else part, uniforms[:, index])
        for index, (size, part) in enumerate(zip(sizes, masks, strict=True))
    ]
    digits = np.stack(columns, axis=1) + space.start.reshape(-1)
    return list(digits.astype(space.dtype).reshape(-1, *space.shape))


def _draw_box(space: gym.spaces.Box, uniforms: npt.NDArray[np.float64]) -> list[Any]:
    first, second = np.split(uniforms, 2, axis=1)
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    below, above = np.isfinite(low), np.isfinite(high)
    width = np.where(below & above, high - low, 1.0)
    if np.issubdtype(space.dtype, np.integer):
        values = np.where(below, low, 0.0) + np.floor(first * (width + 1.0))
        return list(values.astype(space.dtype).reshape(-1, *space.shape))
    normal = np.sqrt(-2.0 * np.log(1.0 - first)) * np.cos(2.0 * np.pi * second)
    tail = -np.log(1.0 - first)
    values = np.where(below & above, np.where(below, low, 0.0) + first * width, normal)
    values = np.where(below & ~above, np.where(below, low, 0.0) + tail, values)
    values = np.where(above & ~below, np.where(above, high, 0.0) - tail, values)
    # A Box without dimensions holds 0-d arrays, and iterating over a row would give scalars.
    return [np.asarray(row) for row in values.astype(space.dtype).reshape(-1, *space.shape)]
