"""The conversation that RLlink clients have: handshake, model, batches, models that follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from menv.serving import RLlinkInput, policy_server, session
from tests.serving.doors import DOORS, HTTP, TCP, Door
from tests.serving.served import obs_of, served
from tests.serving.talks import eventually
from tests.serving.voices import Voice, episode, onnx_bytes

both_dialects = pytest.mark.parametrize("msgpack", [False, True], ids=["json", "msgpack"])
every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)


class Player:
    """A client that acts by itself, as RLlink's own do."""

    def __init__(self, voice: Voice, fields: str = "") -> None:
        self.voice = voice
        self.fields = fields
        self.at = 0
        self.session: Any = None
        self.draws = np.random.default_rng(0)

    def load(self, state: Any) -> int:
        """Take a model; return its number."""
        assert state["type"] == "SET_STATE", state
        graph = onnx_bytes(state["onnx_file"])
        assert len(graph) > 128 * 1024
        self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        return int(state["weights_seq_no"])

    def act(self, obs: Any) -> tuple[int, float, list[float]]:
        """Return an action, its log-probability and the logits."""
        if self.session is None:
            return int(self.draws.integers(2)), float(np.log(0.5)), [0.0, 0.0]
        (logits,) = self.session.run(None, {"onnx::Gemm_0": np.array([obs], np.float32)})[0]
        logp = logits - np.log(np.exp(logits).sum())
        action = int(self.draws.random() < np.exp(logp[1]))
        return action, float(logp[action]), logits.tolist()

    def play(self, steps: int) -> list[Any]:
        """Play so many steps; episodes have ten, and the last one may go on in the next call."""
        episodes, left = [], steps
        while left:
            count = min(left, 10 - self.at % 10)
            numbers = range(self.at, self.at + count + 1)
            done = [self.act(obs_of(number)) for number in numbers[:-1]]
            self.at += count
            left -= count
            actions, logps, logits = (list(column) for column in zip(*done, strict=True))
            more = {"action_logp": logps, "action_dist_inputs": logits} if self.fields == "d1" else {}
            end = "terminated" if self.at % 10 == 0 else ""
            rewards = [float(action) for action in actions]
            episodes.append(episode([obs_of(n) for n in numbers], actions, rewards, end, **more))
        return episodes


@pytest.mark.slow_unless("json-tcp", "msgpack-http", "json-websocket")
@every_door
@both_dialects
def test_the_conversation_of_rllink_in_every_dialect_and_through_every_door(
    door: Door, msgpack: bool
) -> None:
    with served(kind=RLlinkInput) as one, one.training(), one.voice(door, msgpack=msgpack) as voice:
        assert voice.ask("PING") == {"type": "PONG"}
        config = voice.ask("GET_CONFIG")
        assert config == {"type": "SET_CONFIG", "env_steps_per_sample": 32, "force_on_policy": True}
        assert type(config["env_steps_per_sample"]) is int
        player = Player(voice, "d1")
        numbers = [player.load(voice.ask("GET_STATE"))]
        for _ in range(5):
            sent = player.play(32)
            numbers.append(player.load(voice.ask("EPISODES_AND_GET_STATE", episodes=sent, timesteps=32)))
        assert numbers == sorted(set(numbers))
    result = one.results[-1]
    assert result["episodes_total"] == 16
    assert result["episode_len_mean"] == 10
    assert result["num_env_steps_sampled"] == 160
    assert result["external"]["num_off_policy_steps"] == 0
    assert result["num_agent_steps_trained"] > 100


@both_dialects
def test_a_handshake_in_any_order_and_a_ping_while_an_update_is_awaited(msgpack: bool) -> None:
    patient = {"idle_timeout": 1.0}
    with (
        served(kind=RLlinkInput, settings=patient) as one,
        one.voice(msgpack=msgpack) as voice,
        one.training(),
    ):
        assert voice.ask("GET_STATE")["type"] == "SET_STATE"
        assert voice.ask("GET_CONFIG")["type"] == "SET_CONFIG"
        with one.voice() as other:
            # Another client plays and does not wait, so that the first one waits for it.
            other.bring(*Player(other).play(1))
            assert other.ask("PING") == {"type": "PONG"}
            voice.tell("EPISODES_AND_GET_STATE", episodes=Player(voice).play(8))
            assert voice.ask("PING") == {"type": "PONG"}
            assert voice.ask("GET_CONFIG")["env_steps_per_sample"] == 32
            other.bring(*Player(other).play(30))
            assert voice.hear()["type"] == "SET_STATE"


def test_a_client_that_says_nothing_after_connecting_holds_nobody_up() -> None:
    with served(kind=RLlinkInput) as one, one.training(), one.voice() as silent, one.voice() as voice:
        player = Player(voice)
        numbers = [
            player.load(voice.ask("EPISODES_AND_GET_STATE", episodes=player.play(32))) for _ in range(3)
        ]
        assert numbers == sorted(set(numbers))
        assert silent.ask("PING") == {"type": "PONG"}


@pytest.mark.parametrize("door", [TCP, HTTP], ids=lambda door: door.name)
def test_a_client_that_played_and_fell_silent_holds_nobody_up(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (session, policy_server):
        monkeypatch.setattr(module, "STILL_PLAYING_S", 0.3)
    with (
        served(kind=RLlinkInput, settings={"idle_timeout": 60.0}) as one,
        one.voice(door) as silent,
        one.voice() as voice,
    ):
        silent.bring(*Player(silent).play(4))
        assert silent.ask("PING") == {"type": "PONG"}
        player = Player(voice)
        with one.training():
            numbers = [
                player.load(voice.ask("EPISODES_AND_GET_STATE", episodes=player.play(4))) for _ in range(2)
            ]
            player.load(voice.ask("EPISODES_AND_GET_STATE", episodes=player.play(40)))
        assert numbers == [1, 1]


def test_a_first_batch_is_taken_that_was_played_without_any_model() -> None:
    """A client written from the protocol's text alone gets its first model in answer to its first batch."""
    with served(kind=RLlinkInput) as one, one.training(), one.voice() as voice:
        voice.ask("GET_CONFIG")
        player = Player(voice)
        numbers = [
            player.load(voice.ask("EPISODES_AND_GET_STATE", episodes=player.play(32), env_steps=32))
            for _ in range(2)
        ]
    assert numbers == [2, 3]
    # Nobody knows how the first batch was chosen: its weights were never told.
    external = one.results[-1]["external"]
    assert external["messages_refused"] == external["server_faults"] == 0
    assert one.results[-1]["num_agent_steps_sampled"] == 64


def test_two_requests_for_the_next_weights_on_one_connection_are_both_answered() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        player = Player(voice)
        voice.tell("EPISODES_AND_GET_STATE", episodes=player.play(10))
        voice.tell("EPISODES_AND_GET_STATE", episodes=player.play(10))
        with one.training():
            assert [voice.hear()["type"] for _ in range(2)] == ["SET_STATE"] * 2


def test_the_model_that_clients_get_is_the_policy() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        player = Player(voice)
        with one.training():
            assert player.load(voice.ask("GET_STATE")) == 1
            assert player.load(voice.ask("EPISODES_AND_GET_STATE", episodes=player.play(40))) == 2
        (model_input,) = player.session.get_inputs()
        (model_output,) = player.session.get_outputs()
        assert (model_input.name, model_input.type, model_input.shape[1]) == (
            "onnx::Gemm_0",
            "tensor(float)",
            3,
        )
        assert model_output.shape[1] == 2
        policy: Any = one.algo.get_policy()
        for number in range(20):
            obs = np.array(obs_of(number), np.float32)
            (logits,) = player.session.run(None, {"onnx::Gemm_0": obs[None]})[0]
            inputs, _ = policy.networks.backend.evaluate(0, obs[None], None, np.zeros(1, np.int64))
            np.testing.assert_allclose(logits, inputs[0], atol=1e-6)


def test_several_clients_at_once_learn_together_and_their_numbers_only_grow() -> None:
    with served(kind=RLlinkInput) as one, one.training():
        voices = [one.voice(msgpack=bool(place % 2)) for place in range(4)]
        players = [Player(voice, "d1") for voice in voices]
        numbers: list[list[int]] = [[] for _ in players]
        for _ in range(5):
            for player in players:
                player.voice.tell("EPISODES_AND_GET_STATE", episodes=player.play(20))
            for player, own in zip(players, numbers, strict=True):
                own.append(player.load(player.voice.hear()))
        for voice in voices:
            voice.leave()
        assert eventually(lambda: one.results[-1]["episodes_total"] == 40)
    assert all(own == sorted(own) for own in numbers)
    assert one.results[-1]["num_env_steps_sampled"] >= 360
    assert one.results[-1]["episode_len_mean"] == 10


def test_names_that_nobody_needs_and_answers_are_refused_and_the_conversation_goes_on() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        for name in ("ACTION_SPACE", "OBSERVATION_SPACE", "GET_WORKER_ARGS", "GET_WEIGHTS", "REPORT_SAMPLES"):
            assert voice.refused(name) == "unknown_type"
        for name in ("PONG", "SET_STATE", "SET_CONFIG", "OK"):
            assert voice.refused(name) == "unknown_type"
        assert voice.ask("PING") == {"type": "PONG"}
        assert one.refused == 9


def test_a_recurrent_policy_has_no_rllink_file_and_says_so_while_it_answers_one_by_one() -> None:
    model = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}
    with served(kind=RLlinkInput, model=model) as one, one.sampling(), one.voice() as voice:
        answer = voice.ask("GET_STATE")
        assert answer["type"] == "ERROR"
        assert "recurrent" in answer["message"] or "memory" in answer["message"], answer
        voice.ask("START_EPISODE", episode_id="e")
        answer = voice.ask("GET_ACTION", episode_id="e", observation=[0, 0, 0])
        assert answer["type"] == "ACTION"
        assert answer["action"] in (0, 1)


def test_a_server_that_hears_nothing_says_so_and_who_is_connected() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        assert voice.ask("PING") == {"type": "PONG"}
        said = one.algo.train()["external"]["idle"]
        assert said == "no step in 0.05 s: 1 clients connected, 0 open episodes"
        voice.bring(*Player(voice).play(40))
        assert "idle" not in one.algo.train()["external"]
