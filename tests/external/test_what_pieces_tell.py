"""What a client tells of its actions, and what it leaves out: probabilities, their inputs, states, scales, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.algorithms import PPO
from menv.base_env import ExternalSteps, ExternalTrajectory
from tests.external.pieces import AGENT, Noted, own_actions, sampled, told
from tests.external.told import training
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
def test_given_probabilities_are_used_and_the_others_are_computed(kind: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("size", [None, 2])
def test_given_states_are_used_and_the_others_follow_from_the_observations(size: int | None) -> None:
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


def test_a_piece_outside_the_space_is_named() -> None:
    from menv.errors import ContractError

    env = told(Walk())
    with training(env, PPO, rollout_fragment_length=2) as algo:
        bad = ExternalSteps(
            [np.zeros(2, np.float32), np.zeros(3, np.float32), np.zeros(2, np.float32)], [0, 1], np.zeros(2)
        )
        env.broker.start("x")
        env.broker.add_chunk("x", ExternalTrajectory({AGENT: bad}, 2, terminated=True))
        with pytest.raises(ContractError, match="'agent0'"):
            algo.sample()
