"""What is published of policies: the file that RLlink clients read, and old weights by which actions are judged."""

from __future__ import annotations

import base64
import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from menv import Policy
from menv.algorithms import PPO, SAC
from menv.algorithms.networks.onnx_export import INPUT, LEAST_BYTES, onnx_file, rllink_model
from menv.algorithms.training.weight_publisher import WeightsHistory
from menv.connectors import MeanStdObservationFilterAgentConnector
from menv.errors import ConfigError
from menv.inference.golden import columns
from menv.inference.model_check import refuse_unsafe_model
from menv.spaces import columns_of, leaves
from tests.bundles.cases import CASES, algorithm_of, observations

WITHOUT_A_MODEL = {
    name for name, case in CASES.items() if {"use_lstm", "use_gru"} & set(case.model) or case.algorithm is SAC
}
KINDS = [*(name for name in CASES if name not in WITHOUT_A_MODEL), "group"]
ROWS = 6


def flat(policy: Any, shown: list[Any]) -> Any:
    """Return observations as a client writes them: every number, in order, in one row each."""
    parts = columns(policy.observation_space, shown)
    return np.concatenate([part.reshape(len(shown), -1).astype(np.float32) for part in parts], 1)


def wanted(policy: Any, shown: list[Any]) -> Any:
    """Return what a client has to be told, computed by the policy's own back-end."""
    networks = policy.networks
    head = networks.backend.head
    rows, mask = networks.preprocess(shown)
    actions = np.zeros((len(rows), *head.action_shape), head.action_dtype)
    inputs = networks.backend.evaluate(policy.index, rows, mask, actions).dist_inputs
    if head.numbers:
        boxes = [leaf for leaf in leaves(policy.action_space) if isinstance(leaf, gym.spaces.Box)]
        low, high = (
            np.concatenate([getattr(leaf, name).reshape(-1) for leaf in boxes]) for name in ("low", "high")
        )
        cut = sum(head.choices)
        logits, means, log_stds = np.split(inputs.astype(np.float64), [cut, cut + head.numbers], 1)
        for k in range(len(low)):
            if networks.output.normalize and np.isfinite(low[k]) and np.isfinite(high[k]):
                means[:, k] = low[k] + (means[:, k] + 1.0) * (high[k] - low[k]) / 2.0
                log_stds[:, k] += np.log((high[k] - low[k]) / 2.0)
        return np.concatenate((logits, means, log_stds), 1)
    if not head.is_value_based:
        return inputs
    epsilon = float(policy.get_weights()["epsilon"][0])
    allowed = np.ones_like(inputs, np.bool_) if mask is None else mask
    found = np.full(inputs.shape, 1e-30)
    for start in range(0, head.inputs, head.sizes[0]):
        own = slice(start, start + head.sizes[0])
        for row in range(len(rows)):
            legal = np.flatnonzero(allowed[row, own])
            found[row, start + legal] = epsilon / len(legal)
            found[row, start + int(np.argmax(inputs[row, own]))] += 1.0 - epsilon
    return np.log(found)


def disturbed(weights: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return other weights of the same shapes."""
    rng = np.random.default_rng(seed)
    changed = {
        name: (value + 0.3 * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in weights.items()
    }
    return changed | ({"epsilon": np.array([0.1 * seed], np.float32)} if "epsilon" in weights else {})


@pytest.mark.slow_unless(
    "mlp", "masked components", "continuous", "nested actions", "masked and mixed", "picture", "worth"
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_computes_what_the_policy_computes_after_every_update(kind: str) -> None:
    with algorithm_of(kind) as algorithm:
        policy: Any = algorithm.get_policy(next(iter(algorithm.get_weights())))
        shown = observations(policy, ROWS)
        given = flat(policy, shown)
        earlier = np.zeros(0)
        for seed in range(4):
            policy.set_weights(disturbed(policy.get_weights(), seed) if seed else policy.get_weights())
            session = ort.InferenceSession(rllink_model(policy))
            (only,) = session.get_inputs()
            (told,) = session.get_outputs()
            assert (only.name, only.type, only.shape[1:]) == (
                "onnx::Gemm_0",
                "tensor(float)",
                [given.shape[1]],
            )
            right = wanted(policy, shown)
            for row, one in enumerate(given):
                outputs = session.run(None, {INPUT: one[None]})
                np.testing.assert_allclose(outputs[0][0], right[row], rtol=1e-5, atol=1e-5)
                by_name = session.run([told.name], {INPUT: one[None]})
                assert outputs[0].tobytes() == by_name[0].tobytes()
            np.testing.assert_allclose(session.run(None, {INPUT: given})[0], right, rtol=1e-5, atol=1e-5)
            assert not np.array_equal(right, earlier)
            earlier = right


@pytest.mark.parametrize("kind", ["mlp", "wide continuous", "masked worth", "picture"])
def test_a_file_stands_on_its_own_and_a_policy_from_a_disk_gives_the_same(kind: str, tmp_path: Path) -> None:
    with algorithm_of(kind) as algorithm:
        model = rllink_model(algorithm.get_policy())
        loaded = Policy.from_checkpoint(algorithm.export_policy_checkpoint(tmp_path / "policy"))
    assert isinstance(loaded, Policy)
    assert rllink_model(loaded) == model
    refuse_unsafe_model(model, "model")
    read = onnx.load_from_string(model)
    onnx.checker.check_model(read, full_check=True)
    used = {name for node in read.graph.node for name in node.input}
    assert {constant.name for constant in read.graph.initializer} <= used
    assert not [name for name in used if name.startswith("net/value")]
    # RLlib's client reads a file that was never flushed, whose buffer is smaller than this.
    whole = gzip.decompress(base64.b64decode(onnx_file(model)))
    assert len(whole) >= LEAST_BYTES > 128 * 1024
    with (tmp_path / "model").open("wb", buffering=128 * 1024) as file:
        file.write(whole)
        ort.InferenceSession(str(tmp_path / "model"))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["worth", "masked worth"])
def test_the_highest_output_of_dqn_is_the_greedy_action_whatever_epsilon_is(
    kind: str, epsilon: float
) -> None:
    with algorithm_of(kind) as algorithm:
        policy = algorithm.get_policy()
        weights = {**policy.get_weights(), "epsilon": np.array([epsilon], np.float32)}
        policy.set_weights(weights)
        shown = observations(policy, 30)
        best = [int(action) + 1 for action in policy.compute_actions(shown, explore=False)[0]]
        session = ort.InferenceSession(rllink_model(policy))
        (found,) = session.run(None, {INPUT: flat(policy, shown)})
        assert np.argmax(found, 1).tolist() == best
        assert np.isfinite(found).all()
        np.testing.assert_allclose(np.exp(found).sum(1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    "arguments", [{}, {"demean": False}, {"destd": False}, {"clip": None}, {"clip": 0.5}]
)
def test_filters_are_inside_with_the_statistics_of_the_moment(arguments: dict[str, Any]) -> None:
    config = {
        "observation_filter": "MeanStdFilter", "seed": 2, "rollout_fragment_length": 50, "train_batch_size": 50,
        "model": {"fcnet_hiddens": [8]},
    }  # fmt: skip
    with PPO(env="CartPole-v1", config=config) as algorithm:
        policy: Any = algorithm.get_policy()
        if arguments:
            policy.agent_connectors.remove("MeanStdObservationFilterAgentConnector")
            policy.agent_connectors.insert_after(
                "ObsPreprocessorConnector", MeanStdObservationFilterAgentConnector(None, **arguments)
            )
        found = []
        assert ort.InferenceSession(rllink_model(policy))
        shown = [np.array([2.0, -3.0, 0.4, 1.0], np.float32), np.zeros(4, np.float32)]
        for _ in range(2):
            algorithm.train()
            policy.set_weights(disturbed(policy.get_weights(), 1))
            actions, _, fetches = policy.compute_actions(shown, explore=True)
            (logits,) = ort.InferenceSession(rllink_model(policy)).run(None, {INPUT: np.array(shown)})
            logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            np.testing.assert_allclose(logs[[0, 1], actions], fetches["action_logp"], atol=1e-5)
            policy.set_weights(disturbed(policy.get_weights(), 3))
            found.append(rllink_model(policy))
        assert found[0] != found[1]


def own_logp(policy: Any, outputs: Any, action: Any) -> float:
    """Return what a client computes for one action of the environment's, from the file's outputs alone."""
    total, begin, numbers = 0.0, 0, np.zeros(0)
    for leaf, (part,) in zip(
        leaves(policy.action_space), columns_of(policy.action_space, [action]), strict=True
    ):
        if isinstance(leaf, gym.spaces.Box):
            numbers = np.concatenate((numbers, np.asarray(part, np.float64).reshape(-1)))
            continue
        sizes = [leaf.n] if isinstance(leaf, gym.spaces.Discrete) else leaf.nvec.tolist()
        for size, start, choice in zip(sizes, np.atleast_1d(leaf.start), np.atleast_1d(part), strict=True):
            logits = outputs[begin : begin + size].astype(np.float64)
            total += logits[choice - start] - np.log(np.exp(logits).sum())
            begin += size
    mean, log_std = np.split(outputs[begin:].astype(np.float64), 2)
    z = (numbers - mean) / np.exp(log_std)
    return float(total + (-0.5 * z * z - log_std - 0.5 * np.log(2 * np.pi)).sum())


@pytest.mark.slow_unless("mlp", "masked", "nested", "continuous", "mixed")
@pytest.mark.parametrize(
    "kind",
    [
        "mlp", "masked", "nested", "worth", "masked worth", "continuous", "wide continuous", "nested numbers", "mixed",
        "masked and mixed", "mixed as it is",
    ],
)  # fmt: skip
def test_the_server_finds_the_log_probabilities_that_clients_found(kind: str) -> None:
    with algorithm_of(kind) as algorithm:
        policy: Any = algorithm.get_policy()
        history, output = WeightsHistory(), policy.networks.output
        history.note(1, policy.policy_id, policy.get_weights())
        session = ort.InferenceSession(rllink_model(policy))
        shown = observations(policy, 40)
        taken = list(policy.compute_actions(shown, explore=True)[0])
        policy.set_weights(disturbed(policy.get_weights(), 2))
    rows, mask = policy.networks.preprocess(shown)
    found = history.evaluate(policy, 1, rows, mask, output.inverse(taken))
    assert found is not None
    (outputs,) = session.run(None, {INPUT: flat(policy, shown)})
    theirs = [own_logp(policy, *pair) for pair in zip(outputs, taken, strict=True)]
    np.testing.assert_allclose(found.logp, theirs + output.log_scale.sum(), rtol=1e-4, atol=1e-4)


class Own(Policy):
    """Code of a user's own."""


def test_policies_that_no_file_holds_are_refused_with_what_works_instead() -> None:
    frames = {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": 2})]}
    with (
        algorithm_of("lstm") as lstm,
        PPO(env="CartPole-v1", config=frames) as stacked,
        algorithm_of("squashed") as squashed,
    ):
        refused = {
            "Own": Own(gym.spaces.Discrete(2), gym.spaces.Discrete(2)),
            "states": lstm.get_policy(),
            "frames": stacked.get_policy(),
            "SAC": squashed.get_policy(),
        }
        for said, policy in refused.items():
            with pytest.raises(ConfigError, match=rf"{said}.*GET_ACTION.* inference_mode=\"local\"$"):
                rllink_model(policy)


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
    assert [value_of(history, "a", seq) for seq in range(4, 11)] == [*[None] * 3, 7, 7, 9, None]
    assert [value_of(history, "b", seq) for seq in (4, 5, 8, 9, 10)] == [None, 2, 2, 2, None]
    assert [value_of(history, "c", seq) for seq in (8, 9)] == [None, 3]
    assert value_of(history, "nobody", 9) is None
    assert (value_of(history, "a", None), value_of(history, "b", None)) == (9, 2)


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
        newest = [0]
        done = threading.Event()
        history.note(0, policy.policy_id, sets[0])

        def judge(back: int) -> None:
            while not done.is_set():
                seq = max(0, newest[-1] - back)
                found = history.evaluate(policy, seq, rows, None, actions)
                assert found is None or found.logp.tobytes() == wanted[seq % 10]

        with ThreadPoolExecutor(2) as pool:
            judging = [pool.submit(judge, back) for back in (0, 1)]
            try:
                for seq in range(1, 2000):
                    policy.set_weights(sets[seq % 10])
                    assert backend.evaluate(0, rows, None, actions).logp.tobytes() == wanted[seq % 10]
                    history.note(seq, policy.policy_id, sets[seq % 10])
                    newest.append(seq)
            finally:
                done.set()
            for one in judging:
                one.result()
