"""Pieces of episodes that were played elsewhere: the batch is that of the same steps sampled here."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from tests.external.pieces import by_episode, own_actions, sampled, told
from tests.external.told import training
from tests.external.walk import Walk
from tests.inside import metrics

LSTM = {"use_lstm": True, "lstm_cell_size": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filter": {"observation_filter": "MeanStdFilter"},
    "frames": {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})]},
    "lstm": {"model": LSTM},
    "filter and lstm": {"observation_filter": "MeanStdFilter", "model": LSTM},
    "clipped rewards": {"clip_rewards": True},
}
KINDS: dict[str, dict[str, Any]] = {"discrete": {}, "masked": {"masked": True}, "box": {"box": True}}
# What says where and when something was sampled is not the same; pieces have no infos.
ELSEWHERE = ("eps_id", "env_id", "unroll_id", "infos")
CLOSE = ("action_logp", "action_dist_inputs", "action_prob", "vf_preds", "advantages", "value_targets")


def check_same(here: dict[str, Any], there: dict[str, Any]) -> None:
    """Check that the columns of an episode are equal, to the last bit but where networks were asked again."""
    for name, column in here.items():
        if name in CLOSE:
            np.testing.assert_allclose(there[name], column, rtol=2e-4, atol=2e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(there[name], column, err_msg=name)
            assert there[name].dtype == column.dtype, name


def own(kind: dict[str, Any], actions: Any) -> dict[str, Any]:
    """Return actions of a Box as the network said them, for the environment's have been clipped."""
    return {"actions": actions, "network_form": True} if kind.get("box") else {}


def names_of(batch: Any, without: tuple[str, ...] = ELSEWHERE) -> list[str]:
    return [name for name in batch if name not in without]


@pytest.mark.slow_unless("plain-*", "frames-*", "filter and lstm-*")
@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_whole_episodes_give_the_batch_of_the_same_steps_sampled_here(
    settings: dict[str, Any], kind: dict[str, Any]
) -> None:
    config: dict[str, Any] = {"rollout_fragment_length": 20, "train_batch_size": 20, "seed": 7, **settings}
    # A filter has also seen the observation that waits when the first fragment closes.
    here, noted = sampled(PPO, Walk(**kind), fragments=1 if "observation_filter" in settings else 2, **config)
    env = told(Walk(**kind))
    there = []
    with training(env, PPO, batch_mode="complete_episodes", **config) as algo:
        rest = list(noted)
        for batch in here:
            mine, rest = rest[: len(batch.segments.lengths)], rest[len(batch.segments.lengths) :]
            for one, actions in zip(mine, own_actions([batch], mine), strict=True):
                (piece,) = one.pieces(None, **own(kind, actions))
                env.broker.add_chunk(env.broker.start(), piece)
            there.append(algo.sample()["default_policy"])
    names = names_of(here[0])
    for one, other in zip(here, there, strict=True):
        assert set(one) == set(other)
        first, second = by_episode([one], names), by_episode([other], names)
        assert len(first) == len(second)
        for one_here, one_there in zip(first, second, strict=True):
            check_same(one_here, one_there)
        assert sorted(one.segments.lengths.tolist()) == sorted(other.segments.lengths.tolist())


# The statistics of a filter settle with each fragment.
STEADY = {
    name: {"train_batch_size": 20, "seed": 7, **settings}
    for name, settings in SETTINGS.items()
    if "observation_filter" not in settings
}


@cache
def sampled_here(settings: str, kind: str) -> Any:
    """Return what is sampled without any pieces, once for all ways to cut them; nobody changes it."""
    return sampled(PPO, Walk(**KINDS[kind]), rollout_fragment_length=20, **STEADY[settings])


@pytest.mark.slow_unless("closed between-2-*", "*-3-lstm-*")
@pytest.mark.each_value
@pytest.mark.parametrize("which", KINDS)
@pytest.mark.parametrize("settings", STEADY)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("between", [True, False], ids=["closed between", "in one fragment"])
def test_an_episode_may_arrive_in_pieces_even_if_the_fragment_closes_between_them(
    settings: str, which: str, size: int, between: bool
) -> None:
    kind, config = KINDS[which], STEADY[settings]
    here, noted = sampled_here(settings, which)
    steps = sum(len(one.actions) for one in noted)
    env = told(Walk(**kind))
    there = []
    with training(env, PPO, rollout_fragment_length=1 if between else steps, **config) as algo:
        lines = [
            (env.broker.start(), one.pieces(size, **own(kind, actions)))
            for one, actions in zip(noted, own_actions(here, noted), strict=True)
        ]
        while any(pieces for _, pieces in lines):
            for name, pieces in lines:
                if pieces:
                    env.broker.add_chunk(name, pieces.pop(0))
                    if between:
                        there.append(algo.sample())
        if not between:
            there.append(algo.sample())
    batches = [batch["default_policy"] for batch in there if "default_policy" in batch.policy_batches]
    assert sum(batch.env_steps() for batch in there) == steps
    names = names_of(here[0], (*ELSEWHERE, "advantages", "value_targets"))
    first, second = by_episode(here, names), by_episode(batches, names)
    assert len(first) == len(second) == len(noted)
    for mine, its in zip(first, second, strict=True):
        check_same(mine, its)


def test_pieces_and_calls_fill_one_fragment_together() -> None:
    config: dict[str, Any] = {"rollout_fragment_length": 20, "seed": 7}
    _, noted = sampled(DQN, Walk(), fragments=1, **config)
    env = told(Walk())
    with training(env, DQN, **config) as algo:
        # The first one is 3 steps long, the second one 4.
        (first,), (second,) = noted[0].pieces(None), noted[1].pieces(None)
        env.broker.add_chunk(env.broker.start(), first)
        episode = env.start_episode()
        for step in range(13):
            env.log_action(episode, np.array([500, step], np.float32), 0)
            env.log_returns(episode, 1.0)
        env.end_episode(episode, np.array([500, 13], np.float32))
        env.broker.add_chunk(env.broker.start(), second)
        batch = algo.sample()
    own = batch["default_policy"]
    assert sorted(own.segments.lengths.tolist()) == [3, 4, 13]
    assert own["off_policy"].sum() == 13
    assert batch.env_steps() == 20


def test_no_policy_learns_from_pieces_of_an_excluded_episode() -> None:
    _, noted = sampled(PPO, Walk(), fragments=1, rollout_fragment_length=20, seed=7)
    env = told(Walk())
    with training(env, PPO, rollout_fragment_length=sum(len(one.actions) for one in noted)) as algo:
        for number, one in enumerate(noted):
            name = env.broker.start(None, number % 2 == 0)
            for piece in one.pieces(2):
                env.broker.add_chunk(name, piece)
        batch = algo.sample()["default_policy"]
        assert len(metrics(algo).summary()["hist_stats"]["episode_reward"]) == len(noted)
    assert sorted(batch.segments.lengths.tolist()) == sorted(len(one.actions) for one in noted[::2])


@pytest.mark.parametrize("closed", [True, False], ids=["after the fragment", "in it"])
def test_a_lost_episode_ends_with_the_observation_that_waits(closed: bool) -> None:
    _, noted = sampled(PPO, Walk(), fragments=1, rollout_fragment_length=20, seed=7)
    long = max(noted, key=lambda one: len(one.actions))
    env = told(Walk())
    with training(env, DQN, rollout_fragment_length=3 if closed else 4) as algo:
        name = env.broker.start()
        env.broker.add_chunk(name, long.piece(0, 3))
        if closed:
            first = algo.sample()["default_policy"]
            assert first.count == 3
            assert not first["truncateds"].any()
        env.broker.lose([name], "it is a test")
        other = env.broker.start()
        env.broker.add_chunk(other, long.piece(0, 3))
        env.broker.lose([other], "it is a test")
        if not closed:
            env.broker.add_chunk(env.broker.start(), noted[0].piece(0, 1))
        second = algo.sample()["default_policy"]
    lost = [piece for piece in second.split_by_episode() if piece["truncateds"][-1]]
    assert [piece.count for piece in lost] == ([3] if closed else [3, 3])
    for piece in lost:
        np.testing.assert_array_equal(piece["new_obs"][-1], long.obs[3])
        assert piece["rewards"].tolist() == long.rewards[:3]
        assert piece["truncateds"].tolist() == [False, False, True]


def test_pieces_and_single_calls_do_not_mix_in_one_episode() -> None:
    from menv.errors import EpisodeError

    _, noted = sampled(PPO, Walk(), fragments=1, rollout_fragment_length=20, seed=7)
    env = told(Walk())
    board, seen = env.broker, noted[0].obs[0]
    board.start("pieces")
    board.add_chunk("pieces", noted[0].piece(0, 1))
    for call in (
        lambda: env.get_action("pieces", seen),
        lambda: env.log_action("pieces", seen, 0),
        lambda: env.log_returns("pieces", 1.0),
        lambda: env.end_episode("pieces", seen),
    ):
        with pytest.raises(EpisodeError, match="'pieces'"):
            call()
    board.start("logged")
    env.log_action("logged", seen, 0)
    board.start("paid")
    env.log_returns("paid", 1.0)
    for name in ("logged", "paid"):
        with pytest.raises(EpisodeError):
            board.add_chunk(name, noted[0].piece(0, 1))
