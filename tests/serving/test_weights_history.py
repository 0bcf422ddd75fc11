"""Actions are judged by the weights that they were taken with, and nobody who acts notices."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.algorithms.weight_publisher import WeightsHistory
from menv.errors import ConfigError
from tests.algorithms.test_custom_model import Net
from tests.bundles.cases import VECTOR, Spaces, algorithm_of, observations

ROWS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], np.float32)


def linear(action_space: Any) -> PPO:
    """Return an algorithm whose policy is a matrix: its one hidden layer passes the observation on."""
    config = {"model": {"fcnet_hiddens": [3], "fcnet_activation": "linear"}, "seed": 1}
    algorithm = PPO(env=lambda context: Spaces(VECTOR, action_space), config=config)
    passing = {
        name: np.zeros_like(value) for name, value in algorithm.get_weights()["default_policy"].items()
    }
    (hidden,) = (name for name in passing if name.startswith("policy.") and passing[name].shape == (3, 3))
    passing[hidden] = np.eye(3, dtype=np.float32)
    algorithm.set_weights({"default_policy": passing})
    return algorithm


def with_output(weights: Any, matrix: Any, **others: Any) -> dict[str, Any]:
    return {**weights, "policy.out.weight": np.array(matrix, np.float32), **others}


def test_chances_of_a_small_softmax_come_out_as_by_hand() -> None:
    with linear(gym.spaces.Discrete(2)) as algorithm:
        policy: Any = algorithm.get_policy()
        history, start = WeightsHistory(), policy.get_weights()
        history.note(3, policy.policy_id, with_output(start, [[np.log(3), 0], [0, np.log(7)], [0, 0]]))
        history.note(4, policy.policy_id, start)
        old = history.evaluate(policy, 3, ROWS, None, np.array([0, 0]))
        new = history.evaluate(policy, 4, ROWS, None, np.array([0, 0]))
        assert old is not None
        assert new is not None
        np.testing.assert_allclose(old.dist_inputs, [[np.log(3), 0], [0, np.log(7)]], rtol=1e-6)
        np.testing.assert_allclose(np.exp(old.logp), [3 / 4, 1 / 8], rtol=1e-5)
        np.testing.assert_allclose(np.exp(new.logp), [1 / 2, 1 / 2], rtol=1e-5)


def test_forbidden_choices_have_no_chance() -> None:
    with algorithm_of("masked") as algorithm:
        policy: Any = algorithm.get_policy()
        history = WeightsHistory()
        history.note(1, policy.policy_id, policy.get_weights())
        rows, mask = policy.networks.preprocess(observations(policy, 2))
        mask[:] = [[True, False, False, False], [False, True, False, False]]
        found = history.evaluate(policy, 1, rows, mask, np.array([0, 1]))
        assert found is not None
        np.testing.assert_allclose(found.logp, [0.0, 0.0], atol=1e-6)


def test_densities_of_a_gaussian_come_out_as_by_hand() -> None:
    with linear(gym.spaces.Box(-1.0, 1.0, (2,), np.float32)) as algorithm:
        policy: Any = algorithm.get_policy()
        history = WeightsHistory()
        deviations = {"policy.log_std": np.log(np.array([0.5, 2.0], np.float32))}
        matrix = [[1.0, -1.0], [0.0, 3.0], [0.0, 0.0]]
        history.note(0, policy.policy_id, with_output(policy.get_weights(), matrix, **deviations))
        taken = np.array([[1.5, -1.0], [0.0, -1.0]], np.float32)
        found = history.evaluate(policy, None, ROWS, None, taken)
        assert found is not None
        means = [[1.0, -1.0], [0.0, 3.0]]
        np.testing.assert_allclose(found.dist_inputs[:, :2], means, atol=1e-6)
        np.testing.assert_allclose(np.exp(found.dist_inputs[:, 2:]), [[0.5, 2.0]] * 2, rtol=1e-6)
        # One deviation off in one number of the first row, and two in the other of the second; 0.5 * 2.0 = 1.
        np.testing.assert_allclose(found.logp, -np.log(2 * np.pi) - np.array([0.5, 2.0]), rtol=1e-5)


@pytest.mark.parametrize("kind", ["mlp", "continuous", "masked worth", "lstm", "picture", "group"])
def test_old_weights_answer_as_they_did_and_the_weights_that_act_stay(kind: str) -> None:
    with algorithm_of(kind) as algorithm:
        policy: Any = algorithm.get_policy(next(iter(algorithm.get_weights())))
        backend, head = policy.networks.backend, policy.networks.backend.head
        rows, mask = policy.networks.preprocess(observations(policy, 5))
        rng = np.random.default_rng(0)
        noise = rng.random((5, head.noise_width)).astype(np.float32)
        state = rng.random((5, backend.state_size), np.float32) if backend.state_size else None
        actions = backend.decide(rows, mask, noise, policy.index, state).actions
        history, then = WeightsHistory(keep=4), {}
        for seq in range(1, 7):
            weights = {
                name: value + rng.standard_normal(value.shape).astype(np.float32) / 4
                for name, value in policy.get_weights().items()
            }
            if "epsilon" in weights:
                weights["epsilon"][:] = 0.1 * seq
            policy.set_weights(weights)
            history.note(seq, policy.policy_id, weights)
            then[seq] = backend.evaluate(policy.index, rows, mask, actions, state)
            for value in weights.values():
                value[...] = np.nan
        acting = {name: value.tobytes() for name, value in policy.get_weights().items()}
        for seq in (3, 6, 4, 5, 3):
            found = history.evaluate(policy, seq, rows, mask, actions, state)
            assert found is not None
            assert found.dist_inputs.tobytes() == then[seq].dist_inputs.tobytes()
            assert found.logp.tobytes() == then[seq].logp.tobytes()
        assert then[3].dist_inputs.tobytes() != then[4].dist_inputs.tobytes()
        assert history.evaluate(policy, 2, rows, mask, actions, state) is None
        assert {name: value.tobytes() for name, value in policy.get_weights().items()} == acting
        now = backend.evaluate(policy.index, rows, mask, actions, state)
        assert now.logp.tobytes() == then[6].logp.tobytes()
        assert backend.policies == len(policy.networks.policy_ids)


def test_a_module_of_ones_own_is_judged_by_torch() -> None:
    with PPO(env="CartPole-v1", config={"model": {"custom_model": Net}, "seed": 1}) as algorithm:
        policy: Any = algorithm.get_policy()
        backend, history = policy.networks.backend, WeightsHistory()
        rows, actions = np.ones((3, 4), np.float32), np.array([0, 1, 0])
        before = backend.evaluate(0, rows, None, actions)
        history.note(1, policy.policy_id, policy.get_weights())
        algorithm.train()
        history.note(2, policy.policy_id, policy.get_weights())
        after = backend.evaluate(0, rows, None, actions)
        for seq, wanted in ((1, before), (2, after)):
            found = history.evaluate(policy, seq, rows, None, actions)
            assert found is not None
            np.testing.assert_array_equal(found.logp, wanted.logp)
        assert not np.array_equal(before.logp, after.logp)


def some(value: float) -> dict[str, Any]:
    return {"w": np.array([value], np.float32)}


def value_of(history: WeightsHistory, policy_id: str, seq: int | None) -> float | None:
    found = history.weights(policy_id, seq)
    return None if found is None else float(found["w"][0])


def test_a_policy_that_did_not_learn_has_the_weights_that_it_had() -> None:
    history = WeightsHistory(keep=2)
    assert value_of(history, "a", None) is None
    history.note(5, "a", some(1.0))
    history.note(5, "b", some(2.0))
    for seq in (6, 7, 9):
        history.note(seq, "a", some(seq))
    history.note(9, "c", some(3.0))
    assert [value_of(history, "a", seq) for seq in (4, 5, 6, 7, 8, 9, 10)] == [
        None,
        None,
        None,
        7,
        7,
        9,
        None,
    ]
    assert [value_of(history, "b", seq) for seq in (4, 5, 8, 9, 10)] == [None, 2, 2, 2, None]
    assert [value_of(history, "c", seq) for seq in (8, 9)] == [None, 3]
    assert value_of(history, "nobody", 9) is None
    assert (value_of(history, "a", None), value_of(history, "b", None)) == (9, 2)


def test_what_is_kept_is_bounded_and_nobody_may_write_to_it() -> None:
    history = WeightsHistory(keep=3)
    for seq in range(100):
        history.note(seq, "a", some(seq))
    assert [seq for seq in range(100) if value_of(history, "a", seq) is not None] == [97, 98, 99]
    kept = history.weights("a")
    assert kept is not None
    with pytest.raises(ValueError, match="read-only"):
        kept["w"][0] = 7.0


def test_a_policy_that_is_gone_is_forgotten_and_another_may_have_its_name() -> None:
    history = WeightsHistory()
    with algorithm_of("mlp") as one, algorithm_of("three choices") as other:
        for seq, algorithm in enumerate((one, other)):
            policy: Any = algorithm.get_policy()
            rows, _ = policy.networks.preprocess(observations(policy, 2))
            history.note(seq, policy.policy_id, policy.get_weights())
            found = history.evaluate(policy, None, rows, None, np.zeros(2, np.int64))
            assert found is not None
            assert found.dist_inputs.shape == (2, 2 + seq)
            if not seq:
                wrong: Any = other.get_policy()
                with pytest.raises(ConfigError, match="weights do not fit the architecture"):
                    history.evaluate(wrong, None, rows, None, np.zeros(2, np.int64))
                history.forget(policy.policy_id)
                assert history.evaluate(policy, None, rows, None, np.zeros(2, np.int64)) is None


def test_one_thread_acts_and_learns_while_others_judge() -> None:
    with algorithm_of("mlp") as algorithm:
        policy: Any = algorithm.get_policy()
        backend, history = policy.networks.backend, WeightsHistory(keep=2)
        rows, _ = policy.networks.preprocess(observations(policy, 4))
        actions = np.array([0, 1, 0, 1])
        biases = [np.array([number, -number], np.float32) for number in range(10)]
        sets = [{**policy.get_weights(), "policy.out.bias": bias} for bias in biases]
        wanted = []
        for weights in sets:
            policy.set_weights(weights)
            wanted.append(backend.evaluate(0, rows, None, actions).logp.tobytes())
        assert len(set(wanted)) == len(wanted)
        wrong: list[int] = []
        newest = [0]
        done = threading.Event()
        history.note(0, policy.policy_id, sets[0])

        def judge(back: int) -> None:
            while not done.is_set():
                seq = max(0, newest[-1] - back)
                found = history.evaluate(policy, seq, rows, None, actions)
                if found is not None and found.logp.tobytes() != wanted[seq % 10]:
                    wrong.append(seq)

        threads = [threading.Thread(target=judge, args=(back,)) for back in (0, 1)]
        for thread in threads:
            thread.start()
        for seq in range(1, 2000):
            policy.set_weights(sets[seq % 10])
            assert backend.evaluate(0, rows, None, actions).logp.tobytes() == wanted[seq % 10]
            history.note(seq, policy.policy_id, sets[seq % 10])
            newest.append(seq)
        done.set()
        for thread in threads:
            thread.join()
        assert not wrong
