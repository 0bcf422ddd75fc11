"""Sub-environments that step together, sampled in complete episodes: rows wait for the end, and none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.algorithms import PPO
from menv.errors import ContractError
from menv.sample_batch import MultiAgentBatch, SampleBatch
from tests.contract.scripted import SOLO, Script
from tests.inside import sampler
from tests.properties.test_vectorised import KINDS, Run, common, earned, quick, solo_scripts
from tests.sampling.test_digest import digest_of
from tests.worlds import TWO, Alone, InStep

LENGTHS = [2, 3, 7]


class Clock(Alone):
    """An observation tells index, episode and step."""

    observation_space, paid = Box(0.0, 1000.0, (3,), np.float32), 0.0

    def __init__(self, index: int, length: int, actions: Any) -> None:
        super().__init__(length=length)
        self.index, self.action_space = index, actions

    def see(self) -> Any:
        return np.array([self.index, self.episode, self.at], np.float32)

    def pay(self, action: Any) -> float:
        self.paid += 10.0 * self.index + self.at
        return 10.0 * self.index + self.at


def clocks(lengths: Sequence[int] = LENGTHS, actions: Any = TWO) -> InStep:
    """Return three sub-environments, with episodes of 2, 3 and 7 steps as a rule."""
    return InStep([Clock(index, length, actions) for index, length in enumerate(lengths)])


def paid_by(env: InStep) -> float:
    return float(sum(clock.paid for clock in env.envs))


def training(env: Any, length: int, **config: Any) -> PPO:
    """Return an algorithm whose fragments hold complete episodes."""
    small = {
        "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]},
        "rollout_fragment_length": length, "batch_mode": "complete_episodes", "inference": "onnx", "seed": 0,
    }  # fmt: skip
    return PPO(env=lambda context: env, config={**small, **config})


def episodes_of(batch: Any) -> list[tuple[int, int, int]]:
    """Return index, episode and length of each piece, which must begin at step 0 and hold all that follow."""
    found = []
    for piece in batch["default_policy"].split_by_episode():
        index, episode, _ = (int(number) for number in piece["obs"][0])
        assert piece["obs"][:, 2].tolist() == piece["t"].tolist() == list(range(piece.count))
        assert piece["rewards"].tolist() == [10.0 * index + at for at in range(1, piece.count + 1)]
        assert piece["new_obs"][-1].tolist() == [index, episode, piece.count]
        assert piece["terminateds"].tolist() == [False] * (piece.count - 1) + [True]
        found.append((index, episode, piece.count))
    return found


@pytest.mark.parametrize("explore", [True, False])
def test_a_fragment_is_full_when_ended_episodes_have_enough_steps(explore: bool) -> None:
    env = clocks()
    with training(env, 3, explore=explore) as algo:
        first, second = algo.sample(), algo.sample()
        # After 4 steps 2 + 3 + 2 rows are of ended episodes, two less than asked for; after 6 there are 5 more.
        assert episodes_of(first) == [(0, 0, 2), (0, 1, 2), (0, 2, 2), (1, 0, 3), (1, 1, 3)]
        # The rows of the long one have waited for its end, in the 7th.
        assert episodes_of(second) == [(0, 3, 2), (2, 0, 7)]
        assert [batch.env_steps() for batch in (first, second)] == [12, 9]
        found = sampler(algo)
        assert (found.env_steps, found.agent_steps) == (24, 24)
        # Two steps of the second one and one of the third are under way.
        assert found.held_rewards() == 11.0 + 12.0 + 21.0
    rewards = [batch["default_policy"]["rewards"].sum() for batch in (first, second)]
    assert sum(rewards) + 44.0 == paid_by(env)


@pytest.mark.each_value
@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_fragments_hold_whole_episodes_in_every_mode(kind: str, short: bool) -> None:
    run = Run(kind, SOLO, 5, short=short, whole=True)
    lived = run.lived(12)
    for batch in run.batches:
        part = batch["even"]
        pieces = part.segments
        assert batch.env_steps() == part.count >= 15
        assert not pieces.first_t.any()
        assert len(set(pieces.eps_id.tolist())) == len(pieces.eps_id)
        assert (part["terminateds"] | part["truncateds"])[pieces.ends - 1].all()
    unrolls = np.concatenate([batch["even"].segments.unroll_id for batch in run.batches])
    assert unrolls.tolist() == list(range(len(unrolls)))
    summary = run.metrics.summary()
    assert summary["episodes_this_iter"] == len(unrolls)
    assert sum(map(len, lived.values())) == run.loop.digest.rows


def rows_of(batches: list[MultiAgentBatch], episodes: Any) -> SampleBatch:
    """Return the rows of some episodes."""
    batch = SampleBatch.concat_samples([one["even"] for one in batches])
    return batch.take(np.flatnonzero(np.isin(batch["eps_id"], episodes)))


@pytest.mark.each_value
@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_rows_are_those_of_a_run_whose_fragments_cut_episodes(kind: str, short: bool) -> None:
    whole, cut = (Run(kind, SOLO, 4, short=short, salt=kind == "vector", whole=way) for way in (True, False))
    one, other = whole.lived(10), cut.lived(20)
    assert common(one, other) == whole.loop.digest.rows
    episodes = np.concatenate([batch["even"].segments.eps_id for batch in whole.batches])
    digest = digest_of(rows_of(cut.batches, episodes))
    assert digest == whole.loop.digest
    assert digest.rows >= 120


@pytest.mark.slow_unless("vector-True", "Disabled-False")
@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("kind", KINDS[1:])
@given(script=solo_scripts(), length=st.integers(1, 9))
@settings(quick, max_examples=8)
def test_no_reward_is_lost_while_rows_wait(kind: str, short: bool, script: Script, length: int) -> None:
    run = Run(kind, script, length, short=short, whole=True)
    for rows in run.lived(30 // length).values():
        assert [row.t for row in rows] == list(range(len(rows)))
        assert any(rows[-1].flags)
    assert earned(run.batches) + run.loop.held_rewards() == run.paid()


def test_an_episode_keeps_its_policy_when_the_mapping_changes_and_is_not_lost() -> None:
    env = clocks()
    with training(env, 3) as algo:
        first = algo.sample()
        # After 6 steps the third one has not ended; the others have just begun again.
        algo.add_policy("late", policy_mapping_fn=lambda agent_id, **kwargs: "late")
        later = [algo.sample() for _ in range(4)]
        held = sampler(algo).held_rewards()
    old = SampleBatch.concat_samples(
        [one["default_policy"] for one in later if "default_policy" in one.policy_batches]
    )
    (long,) = [piece for piece in old.split_by_episode() if piece["obs"][0][0] == 2.0]
    assert long["obs"].tolist() == [[2.0, 0.0, step] for step in range(long.count)]
    assert long.count > 6
    assert long["terminateds"].tolist() == [False] * (long.count - 1) + [True]
    assert not old["truncateds"].any()
    late = [one["late"] for one in later if "late" in one.policy_batches]
    assert late
    paid = [batch["rewards"].sum() for batch in (first["default_policy"], old, *late)]
    assert sum(paid) + held == paid_by(env)


def test_rows_that_wait_keep_what_they_were_drawn_from() -> None:
    actions = Box(-1.0, 1.0, (1,), np.float32)
    with training(clocks(actions=actions), 3) as algo:
        backend: Any = algo.get_policy().networks.backend  # type: ignore[attr-defined]
        algo.sample()
        before = algo.get_weights()
        changed = {name: weight + 0.5 for name, weight in before["default_policy"].items()}
        algo.set_weights({"default_policy": changed})
        batch = sampler(algo).sample()["default_policy"]
        (long,) = [piece for piece in batch.split_by_episode() if piece["obs"][0][0] == 2.0]
        # The action of the row that waited when the weights changed was drawn later.
        rows = long[0:6]
        now = backend.evaluate(0, rows["obs"], None, rows["actions"])
        algo.set_weights(before)
        then = backend.evaluate(0, rows["obs"], None, rows["actions"])
    assert len(rows["obs"]) == 6
    np.testing.assert_allclose(rows["action_dist_inputs"], then[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows["action_logp"], then[1], rtol=1e-5, atol=1e-5)
    assert (np.abs(now[1] - then[1]) > 0.01).all()


@pytest.mark.parametrize("short", [True, False])
def test_waiting_for_the_end_of_an_endless_episode_is_refused(
    short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("menv.sampling.fragment_limit.LONGEST", 100)
    more: Any = (
        {} if short else {"multiagent": {"policies": ["p", "q"], "policy_mapping_fn": lambda agent: "p"}}
    )
    # The short episodes alone would fill fragments for ever, and the rows of the long one all memory.
    message = "env 2 .*131 env steps.*truncate_episodes"
    with training(clocks([2, 3, 100_000]), 3, **more) as algo:

        def sample_on() -> None:
            for _ in range(100):
                algo.sample()

        with pytest.raises(ContractError, match=message):
            sample_on()


@pytest.mark.each_value
@pytest.mark.parametrize("steps", ["env_steps", "agent_steps"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5}},
        {"observation_filter": "MeanStdFilter"},
        {"inference": "torch"},
    ],
    ids=["plain", "lstm", "filter", "torch"],
)
def test_training_learns_from_whole_episodes_alone(more: dict[str, Any], steps: str) -> None:
    multiagent = {
        "count_steps_by": steps,
        "policies": ["even", "odd"],
        "policy_mapping_fn": lambda agent_id, episode, **kwargs: ["even", "odd"][episode.env_id % 2],
    }
    env = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    with training(env, 10, multiagent=multiagent, **more) as algo:
        results = [algo.train() for _ in range(3)]
        batch = algo.sample()
    assert results[-1]["num_env_steps_trained"] >= 3 * 64
    assert results[-1]["num_env_steps_sampled"] >= results[-1]["num_env_steps_trained"]
    for part in batch.policy_batches.values():
        assert not part.segments.first_t.any()
        assert (part["terminateds"] | part["truncateds"])[part.segments.ends - 1].all()


def test_an_interrupted_fragment_makes_no_later_episode_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("menv.sampling.fragment_limit.LONGEST", 20)
    env = clocks([2, 3, 40])
    with training(env, 3) as algo:
        while env.envs[2].at < 30:
            algo.sample()
        algo.add_policy("late", policy_mapping_fn=lambda agent_id, **kwargs: "late")
        while not env.envs[2].episode:
            algo.sample()
        pieces = algo.sample().policy_batches["late"].split_by_episode()
    assert pieces
    assert all(piece["t"][0] == 0 and piece["terminateds"][-1] for piece in pieces)
