"""What a fragment gets before it is learned from: users' hooks, central critics, and the columns of its algorithm.

`BatchPostprocessor` runs in this process or in workers, where a pickled copy holds what it needs. If no policy has a
hook or a central critic, samplers keep no episodes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from menv.algorithms.config.algorithm_config import AlgorithmConfig, MultiAgentConfig
from menv.algorithms.recipe import Recipe
from menv.algorithms.rollouts.centralized_critic import (
    CriticRows,
    CriticStates,
    JointFragment,
    JointHistory,
    JointObs,
    with_states,
)
from menv.base_env import AgentId
from menv.connectors.built_in import clip_rewards_of
from menv.episode import Episode
from menv.errors import ContractError
from menv.inference.backend import ActingBackend
from menv.policy import Policy
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.policy_group import PolicyGroup
from menv.sampling.trajectories import AgentTrajectory, agent_trajectories

Episodes = Mapping[int, Episode]
Beside = Sequence[tuple[str, SampleBatch]]

# What follows from rewards, and the values that this takes.
_FROM_REWARDS = (SampleBatch.VF_PREDS, SampleBatch.ADVANTAGES, SampleBatch.VALUE_TARGETS)
# Columns that only some batches have.
_SOMETIMES = {SampleBatch.OFF_POLICY, SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS}


def _with_others(
    names: Iterable[str], batch: MultiAgentBatch, episodes: Episodes, beside: Beside
) -> dict[str, list[tuple[AgentTrajectory, dict[AgentId, SampleBatch]]]]:
    """Return the trajectory chunks of some policies, each with the rows of every other agent of its episode.

    The agents are in order of appearance; `beside` are more batches that they are looked up in.
    """
    pieces = {name: agent_trajectories(name, own, episodes) for name, own in batch.policy_batches.items()}
    lives: dict[int, dict[AgentId, list[SampleBatch]]] = {}
    for piece in chain(*pieces.values(), *(agent_trajectories(name, own, episodes) for name, own in beside)):
        lives.setdefault(piece.episode.episode_id, {}).setdefault(piece.agent_id, []).append(piece.batch)
    found: dict[str, list[tuple[AgentTrajectory, dict[AgentId, SampleBatch]]]] = {}
    joined: dict[int, dict[AgentId, SampleBatch]] = {}
    for name in names:
        found[name] = []
        for piece in pieces[name]:
            key = piece.episode.episode_id
            if key not in joined:
                present = [agent for agent in piece.episode.get_agents() if agent in lives[key]]
                joined[key] = {agent: SampleBatch.concat_samples(lives[key][agent]) for agent in present}
            others = {agent: rows for agent, rows in joined[key].items() if agent != piece.agent_id}
            found[name].append((piece, others))
    return found


def add_critic_values(
    batch: SampleBatch, seen: CriticRows, backend: ActingBackend, index: int, states: CriticStates
) -> None:
    """Add `critic_obs` [N, C], and `vf_preds` and `next_vf_preds` [N] by one pass over all rows.

    A row of NaN in `seen.after` is worth as much as the last row of its chunk. A recurrent critic also adds
    `critic_state_in` [N, S], its states before the rows.
    """
    batch[SampleBatch.CRITIC_OBS] = seen.rows
    later = None
    if backend.state_size:
        batch[SampleBatch.CRITIC_STATE_IN], later = states.unrolled(
            batch, backend.state_size, lambda rows, state: backend.critic_state(index, seen.rows[rows], state)
        )
    if SampleBatch.VF_PREDS in batch:
        return
    ends, count = batch.segments.ends - 1, batch.count
    known = ~batch[SampleBatch.TERMINATEDS][ends] & ~np.isnan(seen.after[:, 0])
    state = None if later is None else np.concatenate((batch[SampleBatch.CRITIC_STATE_IN], later[known]))
    values = backend.values(index, np.concatenate((seen.rows, seen.after[known])), state)
    after = np.append(values[1:count], values[count - 1])
    after[ends] = values[ends]
    after[ends[known]] = values[count:]
    batch[SampleBatch.VF_PREDS], batch[SampleBatch.NEXT_VF_PREDS] = values[:count], after


def add_critic_rows(batch: SampleBatch, seen: CriticRows) -> None:
    """Add `critic_obs` and `next_critic_obs` [N, C], for learners that compute values themselves."""
    after = np.concatenate((seen.rows[1:], seen.rows[-1:]))
    after[batch.segments.ends - 1] = seen.after
    batch[SampleBatch.CRITIC_OBS], batch[SampleBatch.NEXT_CRITIC_OBS] = seen.rows, after


def _called(
    critic: Callable[..., Any], piece: AgentTrajectory, others: Mapping[AgentId, SampleBatch], size: int
) -> CriticRows:
    """Call a user's critic function; `after` is NaN where it returns no row for the state after the chunk."""
    # A copy, because the critic must not change the training data.
    found = critic(piece.batch.copy(), others, piece.episode)
    count = piece.batch.count
    try:
        rows = np.asarray(found, np.float32)
    except (TypeError, ValueError):
        rows = np.empty(0, np.float32)
    if rows.shape not in ((count, size), (count + 1, size)):
        raise ContractError(
            f"critic_obs of policy {piece.policy_id!r}, agent {piece.agent_id!r}: returned "
            f"{type(found).__name__} of shape {np.shape(found) if rows.size else None}, expected {(count, size)} or "
            f"{(count + 1, size)}; return critic_obs_size numbers for each row"
        )
    if not np.isfinite(rows).all():
        raise ContractError(
            f"critic_obs of policy {piece.policy_id!r}, agent {piece.agent_id!r}: a number is not finite, expected "
            "finite ones; look for a division by zero"
        )
    after = rows[count:] if len(rows) > count else np.full((1, size), np.nan, np.float32)
    return CriticRows(rows[:count], after)


def _where(piece: AgentTrajectory) -> str:
    return f"policy {piece.policy_id!r}.postprocess_trajectory, agent {piece.agent_id!r}"


class BatchPostprocessor:
    """Adds to each policy's rows the columns that its algorithm learns from.

    `left_out` counts rows that could not be learned from, because the probability of their actions is unknown.
    """

    def __init__(
        self,
        groups: Sequence[PolicyGroup],
        policies: Mapping[str, Policy],
        recipes: Mapping[str, Recipe],
        configs: Mapping[str, AlgorithmConfig],
        joint: Callable[[], JointObs],
    ) -> None:
        self._groups = groups
        self._policies = policies
        self._recipes = recipes
        self._configs = configs
        self._joint = joint
        # The shapes of rows of the columns that each policy's hook returned first; they must stay the same.
        self._columns: dict[str, dict[str, tuple[int, ...]]] = {}
        # What each policy's algorithm computed from the rewards of the last fragment.
        self._computed: dict[str, list[str]] = {}
        self.left_out = 0

    def __reduce__(self) -> Any:
        configs = {name: _bare(config) for name, config in self._configs.items()}
        seen = any(getattr(config, "critic_obs", None) == "all_agents" for config in configs.values())
        joint = partial(_given, self._joint() if seen else None)
        own = list(self._groups), dict(self._policies), dict(self._recipes)
        return BatchPostprocessor, (*own, configs, joint)

    def over(
        self, groups: Sequence[PolicyGroup], policies: Mapping[str, Policy], left_out: int
    ) -> BatchPostprocessor:
        """Return a copy over other groups and policies."""
        other = BatchPostprocessor(groups, policies, self._recipes, self._configs, self._joint)
        other.left_out = left_out
        return other

    def complete(
        self,
        batch: MultiAgentBatch,
        episodes: Mapping[int, Episode],
        beside: Sequence[tuple[str, SampleBatch]],
        history: JointHistory,
        *,
        later: bool = False,
    ) -> None:
        """Add the columns to one fragment.

        `episodes` are needed only for policies with hooks or critics. `beside` are rows that are not learned from but
        that hooks and critics see, `history` knows others. With `later`, `complete_deferred` follows in the learning
        process.
        """
        self._leave_out(batch)
        self._run_hooks(batch, episodes, beside)
        critics = self._critic_rows(batch, episodes, beside, history)
        for backend, index, policy_id in self._of(batch):
            rows, config = batch[policy_id], self._configs[policy_id]
            clip_rewards_of(rows, config.clip_rewards)
            if policy_id in critics and self._recipes[policy_id].off_policy:
                add_critic_rows(rows, critics[policy_id])
            elif policy_id in critics:
                add_critic_values(rows, critics[policy_id], backend, index, history.critic_states)
            lacking = [name for name in _FROM_REWARDS if name not in rows]
            self._recipes[policy_id].complete(rows, backend, index, config, later=later)
            self._computed[policy_id] = [name for name in lacking if name in rows]

    @contextmanager
    def hooks(self, batch: MultiAgentBatch) -> Iterator[None]:
        """Compute again what depends on rewards that the body changes in a completed fragment.

        Columns that the body or a policy's `postprocess_trajectory` wrote are kept. A batch of other rows stays
        unchanged.
        """
        before = {
            name: {key: rows[key].copy() for key in (SampleBatch.REWARDS, *_FROM_REWARDS) if key in rows}
            for name, rows in batch.policy_batches.items()
        }
        yield
        for backend, index, policy_id in self._of(batch):
            rows, known = batch[policy_id], before.get(policy_id, {})
            same = {
                name for name, column in known.items() if name in rows and np.array_equal(column, rows[name])
            }
            if SampleBatch.REWARDS in same:
                continue
            computed = same.intersection(self._computed.get(policy_id, ()))
            if computed:
                fresh = rows[:]
                for name in computed:
                    del fresh[name]
                self._recipes[policy_id].complete(fresh, backend, index, self._configs[policy_id])
                for name in computed:
                    rows[name] = fresh[name]

    def complete_deferred(self, batch: MultiAgentBatch) -> None:
        """Add the columns that were deferred, with the current networks."""
        for backend, index, policy_id in self._of(batch):
            self._recipes[policy_id].complete(batch[policy_id], backend, index, self._configs[policy_id])

    @property
    def wanted(self) -> bool:
        """Whether any policy has a hook or a critic, for which samplers must keep episodes."""
        return any(self._hooked(name) or self._critic_of(name) is not None for name in self._policies)

    def forget(self, policy_id: str) -> None:
        """Forget a removed policy; a new one under its id may leave other columns."""
        self._columns.pop(policy_id, None)

    def _run_hooks(self, batch: MultiAgentBatch, episodes: Episodes, beside: Beside = ()) -> None:
        """Call `postprocess_trajectory` of the policies that override it, for each trajectory chunk."""
        hooked = [name for name in batch if self._hooked(name)]
        for name, shown in (_with_others(hooked, batch, episodes, beside) if hooked else {}).items():
            done = [self._postprocessed(piece, others) for piece, others in shown]
            batch.policy_batches[name] = self._joined(name, [piece for piece, _ in shown], done)

    def _critic_rows(
        self, batch: MultiAgentBatch, episodes: Episodes, beside: Beside, history: JointHistory
    ) -> dict[str, CriticRows]:
        asked = {name: self._critic_of(name) for name in batch}
        own = {name: critic for name, critic in asked.items() if callable(critic)}
        found = {name: with_states(batch[name]) for name, critic in asked.items() if critic == "state"}
        for name, shown in (_with_others(own, batch, episodes, beside) if own else {}).items():
            size = getattr(self._configs[name], "critic_obs_size", 0)
            parts = [_called(own[name], piece, others, size) for piece, others in shown]
            found[name] = CriticRows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        # Rows of others are of use to later fragments, too.
        if any(self._critic_of(name) == "all_agents" for name in self._configs):
            joint = JointFragment(self._joint(), batch, episodes, beside, history)
            for name in (name for name, critic in asked.items() if critic == "all_agents"):
                found[name] = joint.of(name, self._policies[name].observation_space)
        return found

    def _hooked(self, name: str) -> bool:
        return type(self._policies[name]).postprocess_trajectory is not Policy.postprocess_trajectory

    def _critic_of(self, name: str) -> Any:
        return getattr(self._configs.get(name), "critic_obs", None)

    def _postprocessed(self, piece: AgentTrajectory, others: dict[AgentId, SampleBatch]) -> SampleBatch:
        # A copy, because the other agents see the original rows.
        found = self._policies[piece.policy_id].postprocess_trajectory(
            piece.batch.copy(), others, piece.episode
        )
        what = type(found).__name__
        if isinstance(found, SampleBatch):
            lost = sorted(set(piece.batch.stored()) - set(found.stored()))
            if found.count == piece.batch.count and not lost:
                return found
            what = f"{found.count} rows" + (f" without {lost[0]!r}" if lost else "")
        raise ContractError(
            f"{_where(piece)}: returned {what}, expected a SampleBatch of the same {piece.batch.count} rows and their "
            "columns; change the batch that was given and return it"
        )

    def _joined(self, name: str, pieces: list[AgentTrajectory], done: list[SampleBatch]) -> SampleBatch:
        for piece, one in zip(pieces, done, strict=True):
            shapes = {key: one[key].shape[1:] for key in sorted(set(one.stored()) - _SOMETIMES)}
            expected = self._columns.setdefault(name, shapes)
            if shapes != expected:
                odd = sorted(key for key in {**shapes, **expected} if shapes.get(key) != expected.get(key))
                raise ContractError(
                    f"{_where(piece)}: columns {odd} are not in all batches or have rows of another shape in some, "
                    "expected the same columns each time; add zeros where there is nothing to say"
                )
        return SampleBatch.concat_samples(done)

    def _of(self, batch: MultiAgentBatch) -> Iterator[tuple[ActingBackend, int, str]]:
        for networks in (group.strategy.networks for group in self._groups):
            if networks is not None:
                for index, policy_id in enumerate(networks.policy_ids):
                    if policy_id in batch.policy_batches:
                        yield networks.backend, index, policy_id

    def _leave_out(self, batch: MultiAgentBatch) -> None:
        """Drop rows whose action probabilities are unknown.

        The rows before are bootstrapped from a dropped row, so that no return includes its consequences.
        """
        for policy_id, recipe in self._recipes.items():
            rows = batch.policy_batches.get(policy_id)
            if getattr(self._configs.get(policy_id), "clones", False):
                continue
            if recipe.off_policy or rows is None or SampleBatch.OFF_POLICY not in rows.stored():
                continue
            foreign = rows[SampleBatch.OFF_POLICY]
            self.left_out += int(foreign.sum())
            kept = np.flatnonzero(~foreign)
            if not len(kept):
                del batch.policy_batches[policy_id]
            elif len(kept) < len(foreign):
                batch.policy_batches[policy_id] = rows.take(kept)


def _bare(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return settings without the parts, mostly user code, that only an algorithm needs."""
    return replace(
        config, env=None, env_config={}, input=None, callbacks=None, evaluation_config=None,
        multiagent=MultiAgentConfig(),
    )  # fmt: skip


def _given(joint: JointObs | None) -> JointObs:
    assert joint is not None
    return joint
