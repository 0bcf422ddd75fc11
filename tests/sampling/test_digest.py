"""Two digests are equal where the same happened, and differ where anything else did."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

from menv import to_base_env
from menv.algorithms import PPO
from menv.sample_batch import MultiAgentBatch, SampleBatch
from menv.sampling.digest import Digest
from tests.contract.scripted import IRREGULAR, SOLO, TOGETHER, TURNS, Moment, Script, ScriptedEnv, SoloGym
from tests.interrupting import raised_at
from tests.properties.schedules import sampler

STEPS = 60
# "a" dies and comes back.
LIVES: Script = [
    [Moment("ab"), Moment("ab", {"a": 1}), Moment("b", terminated="a", final="a"), Moment("ab", {"b": 1}),
     Moment("ab", {"a": 1}), Moment("b", {"a": 2}, truncated="a"), Moment("ab"), Moment("ab", over="truncated")],
]  # fmt: skip


def make(script: Script, world: int) -> Any:
    return (SoloGym if script is SOLO else ScriptedEnv)(script, world, salt=True)


def played(
    script: Script, splits: list[list[int]], length: int, kind: str = "networks", seed: int = 5
) -> Digest:
    """Return the digest of worlds that are shared out to several samplers."""
    whole = Digest()
    for worlds in splits:
        envs = [make(script, world) for world in worlds]
        base_env = to_base_env(envs[0], envs.__getitem__, len(envs), seed=seed, first_index=worlds[0])
        loop = sampler(base_env, kind, length, seed=seed, first_index=worlds[0])
        for _ in range(STEPS // length):
            loop.sample()
        whole.add(loop.digest)
    return whole


EIGHT = list(range(8))
SPLITS = {
    "one sampler": [EIGHT],
    "two of four": [EIGHT[:4], EIGHT[4:]],
    "the last first": [[index] for index in reversed(EIGHT)],
    "three and five": [EIGHT[:3], EIGHT[3:]],
}


@pytest.mark.slow_unless("solo-networks", "lives-own")
@pytest.mark.parametrize("kind", ["networks", "recurrent", "own"])
@pytest.mark.parametrize("script", [SOLO, TURNS, TOGETHER, LIVES], ids=["solo", "turns", "together", "lives"])
def test_neither_samplers_nor_cuts_change_a_digest(script: Script, kind: str) -> None:
    expected = played(script, SPLITS["one sampler"], 10, kind)
    assert expected.rows > 8 * STEPS // 2
    for splits in SPLITS.values():
        assert played(script, splits, 10, kind) == expected
    for length in (1, 60):
        assert played(script, SPLITS["two of four"], length, kind) == expected


@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_steps_without_a_waiting_agent_are_the_same_in_every_sampler(splits: list[list[int]]) -> None:
    assert played(IRREGULAR, splits, 60) == played(IRREGULAR, SPLITS["one sampler"], 60)


def test_the_place_among_all_sub_environments_counts() -> None:
    """Without a seed these environments are the same in every place; their rows are not."""
    digests = set()
    for first in (0, 2):
        loop = sampler(to_base_env(ScriptedEnv(TURNS)), "networks", 20, first_index=first)
        loop.sample()
        digests.add(loop.digest.hex())
    assert len(digests) == 2


def test_a_result_holds_the_digest_of_the_run_so_far() -> None:
    def digests(seed: int) -> list[str]:
        config = {"seed": seed, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1}
        with PPO(env="CartPole-v1", config=config) as algo:
            return [algo.train()["digest"] for _ in range(3)]

    one, again, other = digests(1), digests(1), digests(2)
    assert one == again
    assert len({*one, *other}) == 6
    assert all(len(text) == 32 and int(text, 16) for text in one)


def sampled(script: Script = TOGETHER, world: int = 0) -> MultiAgentBatch:
    base_env = to_base_env(make(script, world), lambda index: make(script, world + index), 3, seed=1)
    return sampler(base_env, "networks", 42).sample()


def digest_of(*batches: SampleBatch) -> Digest:
    digest = Digest()
    for batch in batches:
        digest.take(batch)
    digest.hex()  # Rows that wait until there are more of them share what lies around the pieces.
    return digest


@pytest.fixture
def batch() -> SampleBatch:
    return sampled()["even"].copy()


def flip_a_bit(column: Any, row: int) -> None:
    """Change the last bit of the last number of a row."""
    part = column[row : row + 1].view(np.uint8).reshape(-1)
    part[-column.dtype.itemsize] ^= 1


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["obs", "actions", "rewards", "terminateds", "truncateds", "t"])
@pytest.mark.parametrize("row", [0, 17, -1])
def test_one_bit_in_one_row_changes_the_digest(name: str, row: int, batch: SampleBatch) -> None:
    before = digest_of(batch)
    flip_a_bit(batch[name], row % batch.count)
    assert digest_of(batch).hex() != before.hex()
    flip_a_bit(batch[name], row % batch.count)
    assert digest_of(batch) == before


def test_the_last_observation_counts_where_a_trajectory_ended_and_nowhere_else(batch: SampleBatch) -> None:
    before = digest_of(batch)
    over = (batch["terminateds"] | batch["truncateds"])[batch.segments.ends - 1]
    assert over.any()
    assert not over.all()
    batch.segments.next_obs[~over] += 1
    assert digest_of(batch) == before
    flip_a_bit(batch.segments.next_obs, int(np.flatnonzero(over)[0]))
    assert digest_of(batch) != before


def swap(column: Any) -> None:
    """Let the first entry change places with one that differs from it."""
    other = int(np.flatnonzero(column != column[0])[0])
    column[[0, other]] = column[[other, 0]]


def forget_a_final(batch: SampleBatch) -> None:
    batch.segments.final_missing[0] ^= True


def turn_a_zero(batch: SampleBatch) -> None:
    batch["rewards"][int(np.flatnonzero(batch["rewards"] == 0.0)[0])] = -0.0


CHANGES: dict[str, Any] = {
    "a last observation is missing": forget_a_final,
    "lives change places": lambda batch: swap(batch.segments.life),
    "episodes change places": lambda batch: swap(batch.segments.eps_id),
    "rewards change places": lambda batch: swap(batch["rewards"]),
    "minus zero": turn_a_zero,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_changes_the_digest(change: str, batch: SampleBatch) -> None:
    before = digest_of(batch)
    CHANGES[change](batch)
    assert digest_of(batch) != before


def test_rows_count_once_each_in_any_order_and_any_pieces(batch: SampleBatch) -> None:
    whole = digest_of(batch)
    rng = np.random.default_rng(0)
    assert digest_of(batch.take(rng.permutation(batch.count))) == whole
    assert digest_of(batch[:7], batch[7:]) == whole
    assert digest_of(*reversed(batch.split_by_episode())) == whole
    assert digest_of(batch, batch[0:1]) != whole
    assert digest_of(batch[1 : batch.count]) != whole


def test_a_mask_counts() -> None:
    with PPO(env="tictactoe", config={"seed": 1, "rollout_fragment_length": 30}) as algo:
        batch = algo.sample()["default_policy"].copy()
    before = digest_of(batch)
    batch["action_mask"][5, 3] ^= True
    assert digest_of(batch) != before


@pytest.mark.parametrize("width", [1, 3, 8, 5000])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_observations_of_every_width_count_in_every_place(width: int, dtype: Any, batch: SampleBatch) -> None:
    batch = batch[0:3]
    batch["obs"] = np.zeros((3, width), dtype)
    batch.segments.next_obs = np.zeros((len(batch.segments.lengths), width), dtype)
    digests = {digest_of(batch).hex()}
    for place in {0, width // 2, width - 1}:
        batch["obs"] = np.zeros((3, width), dtype)
        batch["obs"][1, place] = 1
        digests.add(digest_of(batch).hex())
    assert len(digests) == 1 + len({0, width // 2, width - 1})


def test_an_interrupted_digest_counts_no_row_twice(batch: SampleBatch) -> None:
    digests = [digest_of(*([batch] * times)).hex() for times in range(4)]

    def taken(digest: Digest) -> None:
        digest.take(batch)
        digest.hex()

    for instruction in itertools.count():
        digest = digest_of(batch)
        digest.take(batch)
        if not raised_at(instruction, functools.partial(taken, digest)):
            break
        assert digest.hex() in digests[1:]
        taken(digest)
    assert instruction > 100


def test_a_digest_continues_from_its_state() -> None:
    batches = [sampled(script)[policy] for script in (TOGETHER, TURNS) for policy in ("even", "odd")]
    whole, first = digest_of(*batches), digest_of(*batches[:2])
    again = Digest(*first.state())
    again.take(batches[2])
    again.add(digest_of(batches[3]))
    assert again == whole
    assert again.rows == sum(one.count for one in batches)


def test_each_trajectory_of_an_agent_has_a_unique_key_that_is_the_same_in_every_episode() -> None:
    base_env = to_base_env(make(LIVES, 0))
    batch = sampler(base_env, "networks", 21).sample()["even"]
    pieces = batch.segments
    lives: dict[int, list[int]] = {}
    for episode, life in zip(pieces.eps_id.tolist(), pieces.life.tolist(), strict=True):
        lives.setdefault(episode, []).append(life)
    first, *others = lives.values()
    assert len(set(first)) == len(first) == 3
    assert all(sorted(other) == sorted(first) for other in others)
    assert len(others) == 2
