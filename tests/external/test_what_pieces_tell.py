"""What a client tells of its actions, and what it leaves out: probabilities, their inputs, states, scales, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.algorithms import PPO
from menv.base_env import ExternalSteps, ExternalTrajectory
from tests.external.pieces import AGENT, Noted, own_actions, sampled, told
from tests.external.told import OBS, ToldTeam, training
from tests.external.walk import Walk

CONFIG: dict[str, Any] = {"rollout_fragment_length": 20, "train_batch_size": 20, "seed": 7}
LSTM = {"use_lstm": True, "lstm_cell_size": 8}


def handed_in(
    noted: list[Noted], kind: dict[str, Any], known: list[dict[str, Any]], **config: Any
) -> list[Any]:
    """Hand whole episodes in, with what is known of each; return the rows of each, in order."""
    env = told(Walk(**kind))
    steps = sum(len(one.actions) for one in noted)
    with training(env, PPO, **{**CONFIG, **config, "rollout_fragment_length": steps}) as algo:
        for one, columns in zip(noted, known, strict=True):
            (piece,) = one.pieces(None, **columns)
            env.broker.add_chunk(env.broker.start(), piece)
        pieces = algo.sample()["default_policy"].split_by_episode()
    assert len(pieces) == len(noted)
    return [
        next(piece for piece in pieces if np.array_equal(piece["rewards"], np.array(one.rewards)))
        for one in noted
    ]


@pytest.mark.parametrize("kind", [{}, {"masked": True}, {"box": True}], ids=["discrete", "masked", "box"])
def test_probabilities_that_are_told_are_taken_and_the_others_are_computed(kind: dict[str, Any]) -> None:
    here, noted = sampled(PPO, Walk(**kind), fragments=1, **CONFIG)
    mine = here[0].split_by_episode()
    actions = own_actions(here, noted)
    ways = [{"logp"}, {"dist_inputs"}, set(), {"logp", "dist_inputs"}]
    known: list[dict[str, Any]] = []
    for number, one in enumerate(mine):
        columns: dict[str, Any] = {"network_form": True, "actions": actions[number]}
        way = ways[number % 4]
        if "logp" in way:
            columns["logp"] = np.full(one.count, -3.25 - number)
        if "dist_inputs" in way:
            columns["dist_inputs"] = one["action_dist_inputs"] + 0.5 * np.arange(
                one["action_dist_inputs"].shape[1]
            )
        known.append(columns)
    assert len(mine) >= 4
    for number, (one, its) in enumerate(zip(mine, handed_in(noted, kind, known), strict=True)):
        way, columns = ways[number % 4], known[number]
        assert "off_policy" not in its or not its["off_policy"].any()
        inputs = columns.get("dist_inputs", one["action_dist_inputs"])
        np.testing.assert_allclose(its["action_dist_inputs"], inputs, rtol=1e-4, atol=1e-6)
        if "logp" in way:
            np.testing.assert_allclose(its["action_logp"], columns["logp"], rtol=1e-6)
        elif "dist_inputs" not in way:
            np.testing.assert_allclose(its["action_logp"], one["action_logp"], rtol=1e-4, atol=1e-6)
        elif kind.get("box"):
            means, log_stds = np.split(inputs, 2, 1)
            z = (columns["actions"] - means) / np.exp(log_stds)
            logp = (-0.5 * z**2 - log_stds - 0.5 * np.log(2 * np.pi)).sum(1)
            np.testing.assert_allclose(its["action_logp"], logp, rtol=1e-4)
        else:
            chances = np.exp(inputs) / np.exp(inputs).sum(1, keepdims=True)
            logp = np.log(chances[np.arange(one.count), columns["actions"]])
            np.testing.assert_allclose(its["action_logp"], logp, rtol=1e-4)


def test_densities_of_the_environments_actions_are_those_of_the_networks_up_to_the_scale() -> None:
    """Half the width is 5 in one dimension and 2 in the other: log 10 more in the network's form."""
    _, noted = sampled(PPO, Walk(box=True), fragments=1, **CONFIG)
    count = len(noted[0].actions)
    inputs = np.tile(np.array([[7.5, 0.0, np.log(5.0), 0.0]], np.float32), (count, 1))
    inner = [np.array([7.5, 2.0], np.float32)] * count
    one = Noted(noted[0].obs, inner, noted[0].rewards, noted[0].terminated)
    logp = np.full(count, -1.0)
    (its,) = handed_in([one], {"box": True}, [{"logp": logp, "dist_inputs": inputs}])
    np.testing.assert_allclose(its["actions"], [[0.5, 0.5]] * count, atol=1e-6)
    np.testing.assert_allclose(its["action_logp"], -1.0 + np.log(10.0), rtol=1e-6)
    np.testing.assert_allclose(its["action_dist_inputs"], [[0.5, -0.5, 0.0, -np.log(2.0)]] * count, atol=1e-6)
    same = {"logp": logp, "dist_inputs": inputs, "actions": np.stack(inner), "network_form": True}
    (its,) = handed_in([one], {"box": True}, [same])
    np.testing.assert_allclose(its["actions"], [[7.5, 2.0]] * count)
    np.testing.assert_allclose(its["action_logp"], -1.0)
    np.testing.assert_allclose(its["action_dist_inputs"], inputs)


def test_environment_actions_without_a_word_have_the_density_that_the_network_gives_them() -> None:
    here, noted = sampled(PPO, Walk(box=True), fragments=1, **CONFIG)
    its = handed_in(noted, {"box": True}, [{}] * len(noted))
    for one, other in zip(here[0].split_by_episode(), its, strict=True):
        inside = (np.abs(one["actions"]) < 1.0).all(1)
        np.testing.assert_allclose(other["actions"], np.clip(one["actions"], -1.0, 1.0), atol=1e-6)
        np.testing.assert_allclose(
            other["action_logp"][inside], one["action_logp"][inside], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("size", [None, 2])
def test_states_that_are_told_are_taken_and_others_follow_from_what_was_seen(size: int | None) -> None:
    here, noted = sampled(PPO, Walk(), fragments=1, **CONFIG, model=LSTM)
    mine = here[0].split_by_episode()
    names = [name for name in here[0] if name.startswith("state_in_")]
    states = [np.concatenate([one[name] for name in names], 1) for one in mine]
    assert len(names) == 4
    its: dict[str, Any] = {}
    for kind in ("told", "follow", "other"):
        env = told(Walk())
        steps = sum(len(one.actions) for one in noted)
        with training(env, PPO, **{**CONFIG, "rollout_fragment_length": steps, "model": LSTM}) as algo:
            for one, state in zip(noted, states, strict=True):
                columns = {"told": {"state_in": state}, "follow": {}, "other": {"state_in": state + 1}}[kind]
                name = env.broker.start()
                for piece in one.pieces(size, **columns):
                    env.broker.add_chunk(name, piece)
            its[kind] = algo.sample()["default_policy"]
    for name in names:
        np.testing.assert_array_equal(its["told"][name], its["follow"][name])
        np.testing.assert_array_equal(its["other"][name], its["told"][name] + 1)
    assert sorted(its["told"]["state_in_0"].ravel().tolist()) == sorted(
        here[0]["state_in_0"].ravel().tolist()
    )
    np.testing.assert_allclose(
        np.sort(its["told"]["action_logp"]), np.sort(here[0]["action_logp"]), rtol=1e-4, atol=1e-6
    )


def numbered(noted: list[Noted], number: int | None) -> list[ExternalTrajectory]:
    return [
        ExternalTrajectory(piece.agents, piece.env_steps, piece.terminated, piece.truncated, number)
        for one in noted
        for piece in one.pieces(None)
    ]


def test_pieces_of_weights_that_are_gone_are_left_out_and_counted() -> None:
    _, noted = sampled(PPO, Walk(), fragments=1, **CONFIG)
    asked: list[Any] = []

    def old_weights(policy_id: str, number: int | None, obs: Any, mask: Any, actions: Any, state: Any) -> Any:
        asked.append((policy_id, number, len(obs)))
        return (
            None
            if number == 3
            else (np.full((len(obs), 3), 0.25, np.float32), np.full(len(obs), -7.0, np.float32))
        )

    counts = [len(one.actions) for one in noted[:4]]
    env = told(Walk())
    sizes = {"rollout_fragment_length": sum(counts), "train_batch_size": sum(counts)}
    with training(env, PPO, **{**CONFIG, **sizes}) as algo:
        played = algo._sampler.external_writer
        played.old_weights, played.weights_seq_no, played.max_staleness = old_weights, 8, 6
        for piece, number in zip(numbered(noted[:4], None), (1, 3, 5, 8), strict=True):
            again = ExternalTrajectory(
                piece.agents, piece.env_steps, piece.terminated, piece.truncated, number
            )
            env.broker.add_chunk(env.broker.start(), again)
        result = algo.train()
        told_of = result["external"]
    # Too old to be looked for at all; gone; there; those of now.
    assert asked == [
        ("default_policy", 3, counts[1]),
        ("default_policy", 5, counts[2]),
        ("default_policy", 8, counts[3]),
    ]
    assert told_of["num_stale_steps"] == counts[0] + counts[1]
    assert told_of["num_off_policy_steps"] == counts[0] + counts[1]
    assert told_of["num_agent_steps_left_out"] == counts[0] + counts[1]
    assert result["num_agent_steps_trained"] == counts[2] + counts[3]


def test_agents_of_a_piece_end_when_they_do_and_the_others_with_the_episode() -> None:
    def column(number: int, steps: Any) -> Any:
        return np.array([[number, step] for step in steps], np.float32)

    def moves(number: int, start: int, stop: int, **flags: Any) -> ExternalSteps:
        count = stop - start
        return ExternalSteps(
            column(number, range(start, stop + 1)),
            [1] * count,
            np.arange(start, stop, dtype=np.float64),
            **flags,
        )

    env = ToldTeam(observation_space=OBS)
    with training(env, PPO, rollout_fragment_length=7) as algo:
        board = env.broker
        board.start("x")
        board.add_chunk(
            "x", ExternalTrajectory({"a": moves(0, 0, 3), "b": moves(1, 0, 2, terminated=True)}, 3)
        )
        board.add_chunk("x", ExternalTrajectory({"a": moves(0, 3, 4), "c": moves(2, 0, 1)}, 1))
        # "c" does nothing here, but lives on; "b" comes back; "a" only tells that it is over.
        board.add_chunk(
            "x", ExternalTrajectory({"a": moves(0, 4, 4, truncated=True), "b": moves(1, 20, 22)}, 2)
        )
        board.add_chunk("x", ExternalTrajectory({"b": moves(1, 22, 23)}, 1, terminated=True))
        batch = algo.sample()["default_policy"]
        summary = algo._metrics.summary()
    lives = {(int(piece["obs"][0][0]), int(piece["obs"][0][1])): piece for piece in batch.split_by_episode()}
    assert {key: piece.count for key, piece in lives.items()} == {(0, 0): 4, (1, 0): 2, (2, 0): 1, (1, 20): 3}
    ends = {key: (bool(one["terminateds"][-1]), bool(one["truncateds"][-1])) for key, one in lives.items()}
    assert ends == {
        (0, 0): (False, True),
        (1, 0): (True, False),
        (2, 0): (True, False),
        (1, 20): (True, False),
    }
    last = {key: one["new_obs"][-1].tolist() for key, one in lives.items()}
    assert last == {(0, 0): [0.0, 4.0], (1, 0): [1.0, 2.0], (2, 0): [2.0, 1.0], (1, 20): [1.0, 23.0]}
    assert {int(one["eps_id"][0]) for one in lives.values()} == {int(batch["eps_id"][0])}
    assert summary["hist_stats"]["episode_reward"] == [0.0 + 1 + 2 + 3 + 0 + 1 + 0 + 20 + 21 + 22]
    assert summary["hist_stats"]["episode_lengths"] == [7]


def test_a_piece_outside_the_space_is_named() -> None:
    from menv.errors import ContractError

    env = told(Walk())
    with training(env, PPO, rollout_fragment_length=2) as algo:
        bad = ExternalSteps(
            [np.zeros(2, np.float32), np.zeros(3, np.float32), np.zeros(2, np.float32)], [0, 1], np.zeros(2)
        )
        env.broker.start("x")
        env.broker.add_chunk("x", ExternalTrajectory({AGENT: bad}, 2, terminated=True))
        with pytest.raises(ContractError, match=r"env x, agent 'agent0', observation 1 of a chunk: .*\(3,\)"):
            algo.sample()


def test_an_episode_without_a_step_is_nothing() -> None:
    env = told(Walk())
    nothing = ExternalSteps([np.zeros(2, np.float32)], [], np.zeros(0), terminated=True)
    with training(env, PPO, idle_timeout=0.05) as algo:
        env.broker.add_chunk(env.broker.start(), ExternalTrajectory({AGENT: nothing}, 0, terminated=True))
        result = algo.train()
    assert result["episodes_this_iter"] == 0
    assert "idle" in result["external"]


@pytest.mark.parametrize("closed", [True, False])
def test_an_episode_may_end_with_a_piece_without_a_step(closed: bool) -> None:
    _, noted = sampled(PPO, Walk(), fragments=1, **CONFIG)
    one = noted[1]
    env = told(Walk())
    with training(env, PPO, rollout_fragment_length=4 if closed else 7) as algo:
        env.broker.start("x")
        env.broker.add_chunk("x", one.piece(0, 3))
        first = one.piece(3, 4).agents[AGENT]
        env.broker.add_chunk(
            "x", ExternalTrajectory({AGENT: ExternalSteps(first.obs, first.actions, first.rewards)}, 1)
        )
        batches = [algo.sample()["default_policy"]] if closed else []
        last = ExternalSteps(first.obs[1:], [], np.zeros(0), terminated=True)
        env.broker.add_chunk("x", ExternalTrajectory({AGENT: last}, 0, terminated=True))
        (piece,) = noted[0].pieces(None)
        env.broker.add_chunk(env.broker.start(), piece)
        if closed:
            env.broker.add_chunk(env.broker.start(), noted[0].piece(0, 1))
        batches.append(algo.sample()["default_policy"])
    rows = [row for batch in batches for row in batch.rows() if row["eps_id"] == batches[0]["eps_id"][0]]
    assert [row["rewards"] for row in rows] == one.rewards
    assert [bool(row["terminateds"]) for row in rows] == [False, False, False, not closed]
