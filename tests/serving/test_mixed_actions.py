"""Actions of choices and numbers on the wire: played by clients, asked for, judged, refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest

from menv.serving import PolicyClient, RLlinkInput
from tests.serving.courses import Course, every_mode
from tests.serving.doors import HTTP, TCP, Door
from tests.serving.served import served
from tests.serving.talks import eventually
from tests.serving.voices import Turns, episode, onnx_bytes

S = gym.spaces
SEEN = S.Box(-1.0, 1.0, (2,), np.float32)
CAR: Any = S.Dict({
    "gas": S.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)),
    "gear": S.Tuple([S.Discrete(3, start=1), S.Box(-np.inf, np.inf, (), np.float32)]),
})  # fmt: skip
MASKED = S.Dict({"action_mask": S.MultiBinary(3), "seen": SEEN})
SPACES: dict[str, Any] = {"observation_space": MASKED, "action_space": CAR}


def observed(n: int) -> dict[str, Any]:
    """Return an observation that allows the gears 1 and 3."""
    return {"action_mask": [1, 0, 1], "seen": [n / 100, -n / 100]}


def drive(gear: int = 1, gas: Any = (0.5, 0.5)) -> dict[str, Any]:
    return {"gas": list(gas), "gear": [gear, -1.5]}


def played(steps: int, seed: int = 0) -> tuple[Any, Any]:
    """Return episodes' observations and actions, some beyond the bounds."""
    rng = np.random.default_rng(seed)
    acts = [
        {"gas": rng.normal(0, 3, 2).round(3).tolist(), "gear": [int(gear), round(rng.normal(), 3)]}
        for gear in rng.choice([1, 3], steps)
    ]
    return [observed(n) for n in range(steps + 1)], acts


def judged(outputs: Any, acts: Any) -> Any:
    """Return log-probabilities by the outputs of the model: three logits, three means, three log_stds."""
    logits, means, log_stds = np.split(outputs.astype(np.float64), 3, 1)
    chosen = np.array([act["gear"][0] - 1 for act in acts])
    of_gear = logits[np.arange(len(acts)), chosen] - np.log(np.exp(logits).sum(1))
    numbers = np.array([[*act["gas"], act["gear"][1]] for act in acts])
    z = (numbers - means) / np.exp(log_stds)
    return of_gear + (-0.5 * z**2 - log_stds - 0.5 * np.log(2 * np.pi)).sum(1)


@pytest.mark.parametrize(
    ("door", "msgpack"), [(TCP, False), (TCP, True), (HTTP, False)], ids=["tcp", "packed", "http"]
)
def test_a_client_that_draws_from_the_model_and_the_server_agree(door: Door, msgpack: bool) -> None:
    obs, acts = played(33)
    flat = np.array([[*one["action_mask"], *one["seen"]] for one in obs[:-1]], np.float32)
    with served(kind=RLlinkInput, **SPACES) as one, one.voice(door, msgpack=msgpack) as voice:
        with one.sampling():
            state = voice.ask("GET_STATE")
        graph = onnxruntime.InferenceSession(onnx_bytes(state["onnx_file"]))
        (outputs,) = graph.run(None, {"onnx::Gemm_0": flat})
        own = judged(outputs, acts)
        sent = episode(obs, acts, [1.0] * 33, "terminated")
        voice.bring(sent)
        computed = one.sample(33)["default_policy"]
        voice.bring({**sent, "action_logp": own.tolist(), "action_dist_inputs": outputs.tolist()})
        given = one.sample(33)["default_policy"]
    assert outputs.shape == (33, 9)
    # gas, gas, gear, number behind the gear; gas is scaled back from its bounds.
    wanted = [[act["gas"][0] / 2, act["gas"][1] * 2 - 1, act["gear"][0] - 1, act["gear"][1]] for act in acts]
    np.testing.assert_allclose(computed["actions"], wanted, atol=1e-5)
    for name, atol in (("actions", 1e-6), ("action_logp", 1e-4), ("action_dist_inputs", 1e-4)):
        np.testing.assert_allclose(computed[name], given[name], rtol=1e-5, atol=atol)
    np.testing.assert_allclose(given["action_logp"] - np.log(2) - np.log(0.5), own, rtol=1e-4)


def test_a_density_above_one_has_a_positive_logarithm() -> None:
    obs, acts = played(33)
    told = {"action_logp": [[-0.5, 3.0]] * 33, "action_dist_inputs": [[0.0] * 6 + [-4.0] * 3] * 33}
    with served(kind=RLlinkInput, **SPACES) as one, one.voice() as voice:
        voice.bring({**episode(obs, acts, [1.0] * 33, "terminated"), **told})
        batch = one.sample(33)["default_policy"]
    np.testing.assert_allclose(batch["action_logp"], 2.5 + np.log(2) + np.log(0.5), rtol=1e-5)


@pytest.mark.parametrize("door", [TCP, HTTP], ids=["tcp", "http"])
def test_actions_that_are_none_or_that_a_mask_forbids_are_refused_by_name(door: Door) -> None:
    with served(**SPACES) as one, one.voice(door) as voice, one.sampling():
        voice.greet()
        turns = Turns(voice, "e")
        gear = turns.act(observed(1))["gear"][0]
        assert gear in (1, 3)
        for wrong, code in (
            (drive(2), "out_of_range"),
            (drive(4), "out_of_range"),
            (drive(gas=[0.5]), "wrong_length"),
            (drive(gas=[0.5, "x"]), "wrong_type"),
            ({"gas": [0.5, 0.5]}, "malformed"),
        ):
            said = voice.ask("LOG_ACTION", episode_id="e", observation=observed(2), action=wrong)
            assert (said["type"], said["code"]) == ("ERROR", code), said


def test_a_mask_that_is_declared_in_parts_is_read_as_one_of_flags_is() -> None:
    parts = S.Dict({"gear": S.Tuple([S.MultiBinary(3)])})
    spaces = {"observation_space": S.Dict({"action_mask": parts, "seen": SEEN}), "action_space": CAR}
    with served(**spaces) as one, one.voice() as voice, one.sampling():
        shown: Any = {"action_mask": {"gear": [[0, 1, 0]]}, "seen": [0.0, 0.0]}
        turns = Turns(voice, "e")
        assert turns.act(shown)["gear"][0] == 2
        assert (
            voice.refused("LOG_ACTION", episode_id="e", observation=shown, action=drive(1)) == "out_of_range"
        )
        shown["action_mask"]["gear"] = [[0, 0, 0]]
        assert voice.refused("GET_ACTION", episode_id="e", observation=shown) == "out_of_range"


@every_mode
@pytest.mark.parametrize("transport", ["tcp", "http"])
def test_clients_of_both_modes_get_elements_and_train(mode: Any, transport: Any) -> None:
    shown = {"action_mask": np.array([0, 1, 1], np.int8), "seen": np.zeros(2, np.float32)}
    with Course(SPACES, transport, trains=False) as course:
        with PolicyClient(course.address, mode, timeout=20) as client:
            name = client.start_episode()
            acts = []
            for _ in range(8):
                acts.append(client.get_action(name, shown))
                assert CAR.contains(acts[-1]), acts[-1]
                assert acts[-1]["gear"][0] in (2, 3)
                client.log_returns(name, 1.0)
            client.end_episode(name, shown)
        eventually(lambda: len(course.column("rewards")) >= 8)
        actions, inputs = course.column("actions"), course.column("action_dist_inputs")
    assert actions.shape == (8, 4)
    assert inputs.shape == (8, 9)
    np.testing.assert_array_equal(actions[:, 2], [act["gear"][0] - 1 for act in acts])
    np.testing.assert_allclose(np.clip(2 * actions[:, 0], -2, 2), [act["gas"][0] for act in acts], atol=1e-5)
    np.testing.assert_allclose(actions[:, 3], [act["gear"][1] for act in acts], atol=1e-6)
