"""What is learned from clients, and how they are answered meanwhile: with the weights that were published last."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.callbacks import DefaultCallbacks
from menv.errors import ConfigError
from menv.inference.policy_bundle import policy_from_bytes, unpack_weights
from menv.serving import PolicyClient, RLlinkInput
from menv.serving.protocol import Episodes, GetState
from tests.serving.courses import TEAMS, every_mode, keeping, observation, play, playing
from tests.serving.doors import HTTP, TCP, Door, every_door
from tests.serving.served import MASKED, Served, obs_of, played, served
from tests.serving.talks import eventually
from tests.serving.voices import Turns, Voice

PATIENCE_S = 20.0
FEW_STEPS: dict[str, Any] = {"num_steps_sampled_before_learning_starts": 0, "rollout_fragment_length": 8}
"""Of DQN."""


class Lesson(DefaultCallbacks):
    """Learning that begins when it is allowed to, and ends when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.over = threading.Event(), threading.Event()

    def on_learn_on_batch(self, **_: Any) -> None:
        self.begun.set()
        assert self.over.wait(PATIENCE_S)


@pytest.fixture
def lesson() -> Iterator[Lesson]:
    lesson = Lesson()
    yield lesson
    lesson.over.set()


def learns(one: Served, lesson: Lesson) -> None:
    """Wait until the algorithm learns."""
    with one.voice() as voice:
        voice.bring(played(40))
    assert lesson.begun.wait(PATIENCE_S)


def answered(voice: Voice, number: int) -> None:
    """Ask for everything that concerns policies; each answer has the weights of a number."""
    for form in ("onnx", "bundle", "weights"):
        state = voice.ask("GET_STATE", form=form)
        assert state["type"] == "SET_STATE", state
        assert state["weights_seq_no"] == number
    assert voice.greet()["policies"].keys() == {"default_policy"}
    told = voice.ask("GET_POLICIES", episode_id="mine", agent_ids=["agent0"])
    assert told == {"type": "POLICIES", "policy_ids": {"agent0": "default_policy"}}


@pytest.mark.each_value
@pytest.mark.parametrize("algorithm", [PPO, DQN])
@every_door
def test_clients_are_answered_while_the_algorithm_learns(door: Door, algorithm: Any, lesson: Lesson) -> None:
    config = {**(FEW_STEPS if algorithm is DQN else {}), "callbacks": lesson}
    with served(algorithm, **config) as one, one.voice(door) as early, one.training():
        answered(early, 1)
        learns(one, lesson)
        answered(early, 1)
        with one.voice(door) as late:
            answered(late, 1)
        lesson.over.set()
        assert eventually(lambda: early.ask("GET_STATE")["weights_seq_no"] == 2)


def test_weights_are_those_of_their_number_whatever_the_learner_has_done_since() -> None:
    seen: list[Any] = []

    class Asks(DefaultCallbacks):
        def on_learn_on_batch(self, *, policy: Any, **_: Any) -> None:
            # As a user's own loss does that is halfway through its steps.
            policy.set_weights({name: value + 1.0 for name, value in policy.get_weights().items()})
            with one.voice() as voice:
                for form in ("bundle", "weights"):
                    seen.append(voice.ask("GET_STATE", form=form))

    with served(callbacks=Asks) as one, one.voice() as voice:
        before = one.algo.get_policy().get_weights()
        voice.bring(played(40))
        one.algo.train()
    bundle, weights = (base64.b64decode(state[form + end]["default_policy"]) for state, form, end in
                       zip(seen, ("bundle", "weights"), ("s", ""), strict=True))  # fmt: skip
    for found in (policy_from_bytes(bundle).get_weights(), unpack_weights(weights)):
        assert found.keys() == before.keys()
        assert all(np.array_equal(found[name], before[name]) for name in before)


def test_a_filter_is_that_of_the_weights_and_not_of_rows_that_came_since(lesson: Lesson) -> None:
    with served(callbacks=lesson, observation_filter="MeanStdFilter") as one, one.training():
        with one.voice() as voice:
            before = voice.ask("GET_STATE", form="bundle")
        learns(one, lesson)
        policy: Any = one.algo.get_policy()
        grown = policy.agent_connectors["MeanStdObservationFilterAgentConnector"][0].statistics.count
        with one.voice() as voice:
            after = voice.ask("GET_STATE", form="bundle")
        lesson.over.set()
    assert grown
    assert after == before


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("mode", ["local", "remote"])
def test_weights_that_do_not_learn_keep_their_number_and_clients_continue(algorithm: Any, mode: str) -> None:
    frozen: dict[str, Any] = {"multiagent": {"policies_to_train": []}}
    with (
        served(algorithm, doors=(TCP,), settings={"force_on_policy": True}, **frozen) as one,
        one.client(mode, update_interval=0.0) as client,
    ):
        with one.training():
            # Several train batches of 32 steps, after each of which a local client asks for the next weights.
            for _ in range(4):
                play(client, [1.0] * 40)
            assert eventually(lambda: one.algo.iteration >= 3)
        assert one.envs.broker.weights_seq_no == 1
        assert client.weights_seq_no in (None, 1)
        one.algo.set_weights(one.algo.get_weights())
        assert one.envs.broker.weights_seq_no == 2


def test_an_error_of_the_mapping_ends_the_training_and_is_answered() -> None:
    def mapping(agent_id: str, episode: Any, worker: Any, **_: Any) -> str:
        if str(episode.env_id).endswith("/bad"):
            raise KeyError("a user's own")
        return agent_id.partition("_")[0]

    teams = {**TEAMS, "multiagent": {**TEAMS["multiagent"], "policy_mapping_fn": mapping}}
    with served(**teams) as one, one.voice() as voice:
        assert voice.refused("GET_POLICIES", episode_id="bad", agent_ids=["red_0"]) == "internal"
        with pytest.raises(KeyError, match="a user's own"):
            one.algo.train()


@contextlib.contextmanager
def slowly(client: PolicyClient, kind: Any) -> Iterator[None]:
    """Let a client's requests of a kind be sent only at the end."""
    assert client._actor is not None
    link, over = client._actor._server, threading.Event()
    ask = link.ask

    def waits(request: Any, **how: Any) -> Any:
        assert type(request) is not kind or over.wait(PATIENCE_S)
        return ask(request, **how)

    link.ask = waits  # type: ignore[method-assign]
    try:
        yield
    finally:
        over.set()


def act(client: PolicyClient, name: str, number: int = 0) -> None:
    client.log_returns(name, 1.0)
    client.get_action(name, observation(number))


def test_actions_are_chosen_while_the_answer_with_new_weights_is_awaited() -> None:
    with (
        keeping(force_on_policy=False) as course,
        PolicyClient(course.address, "local", update_interval=0.001) as client,
    ):
        name, steps = client.start_episode(), 101
        client.get_action(name, observation(0))
        with slowly(client, GetState):
            course.algo.set_weights(course.algo.get_weights())
            for number in range(100):
                time.sleep(0.001)
                act(client, name, number)
            assert client.weights_seq_no == 1
        while client.weights_seq_no == 1:
            act(client, name)
            steps += 1
        client.log_returns(name, 1.0)
        client.end_episode(name, observation(0))
        client.close()
        assert course.has_rewards([1.0] * steps)


def test_actions_are_chosen_while_the_server_takes_a_message_slowly_and_what_waits_is_bounded() -> None:
    with playing("local", force_on_policy=False) as (course, client):
        name = client.start_episode()
        client.get_action(name, observation(0))
        played: list[int] = []

        def play() -> None:
            for number in range(1_000):
                act(client, name, number % 100)
                played.append(number)

        with ThreadPoolExecutor(1) as pool:
            with slowly(client, Episodes):
                playing_on = pool.submit(play)
                # Messages have 8 steps.
                assert eventually(lambda: len(played) > 8 * 60)
                time.sleep(0.3)
                assert len(played) < 8 * 70
            playing_on.result(PATIENCE_S)
        client.log_returns(name, 1.0)
        client.end_episode(name, observation(0))
        client.close()
        assert course.has_rewards([1.0] * 1_001)


STEPS = 240
OF_20: dict[str, Any] = {"rollout_fragment_length": 20, "num_steps_sampled_before_learning_starts": 10_000}


def sampled(batches: Sequence[Any]) -> list[int]:
    """Return how many rows each fragment has, but for those that nothing came for."""
    rows = [sum(len(batch[name]["rewards"]) for name in batch) for batch in list(batches)]
    return [count for count in rows if count]


@pytest.mark.each_value
@pytest.mark.parametrize("length", [1, 40])
@every_door
def test_what_was_said_ahead_is_answered_in_order_and_makes_fragments_of_their_length(
    door: Door, length: int
) -> None:
    with served(DQN, **OF_20) as one, one.voice(door) as voice:
        numbers = []
        for number in range(STEPS // length):
            turns: list[tuple[str, dict[str, Any]]] = [
                ("LOG_ACTION", {"observation": obs_of(step), "action": 0}) for step in range(length)
            ]
            said = [("START_EPISODE", {}), *turns, ("END_EPISODE", {"observation": obs_of(0)})]
            for seq, (kind, fields) in enumerate(said):
                voice.tell(kind, episode_id=f"{number}", seq=seq, **fields)
                numbers.append(seq)
                if door is HTTP:
                    assert voice.hear()["seq"] == seq
        if door is not HTTP:
            assert [voice.hear()["seq"] for _ in numbers] == numbers
        with one.sampling():
            assert eventually(lambda: sum(sampled(one.batches)) == STEPS)
        assert set(sampled(one.batches)) == {20}


@every_mode
def test_log_action_waits_for_the_sampler_while_other_clients_are_served(mode: Any) -> None:
    with (
        served(DQN, **OF_20) as one,
        one.voice() as other,
        one.client(mode) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        name = client.start_episode()

        def log() -> None:
            for step in range(3):
                client.log_action(name, obs_of(step), 0)

        logged = pool.submit(log)
        for _ in range(20):
            assert other.ask("GET_STATE")["type"] == "SET_STATE"
        time.sleep(0.1)
        assert not logged.done()
        with one.sampling():
            logged.result(20)
            client.end_episode(name, obs_of(0))


def moved(agent_obs: Mapping[Any, Any], **_: Any) -> dict[Any, Any]:
    """Show every agent its observation plus 2."""
    return {agent: np.asarray(obs) + np.float32(2) for agent, obs in agent_obs.items()}


SHOWN: dict[str, Any] = {"multiagent": {"observation_fn": moved}}


@every_door
def test_what_a_client_asks_about_is_shown_to_the_policy_as_the_function_says(door: Door) -> None:
    with served(**SHOWN) as one:
        with one.sampling(), one.voice(door) as voice:
            turns = Turns(voice, "e")
            for number in range(3):
                turns.act(obs_of(number))
                turns.pay(1.0)
            turns.end(obs_of(3))
        one.paid()
        expected = np.array([obs_of(number) for number in range(3)], np.float32) + 2
        np.testing.assert_array_equal(one.column("obs"), expected)


def test_an_input_for_clients_that_act_by_themselves_is_refused_when_the_algorithm_is_built() -> None:
    before = threading.active_count()
    with pytest.raises(ConfigError, match="observation_fn"):
        served(kind=RLlinkInput, **SHOWN).__enter__()
    assert threading.active_count() == before


S = gym.spaces
CAR: Any = S.Dict({
    "gas": S.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)),
    "gear": S.Tuple([S.Discrete(3, start=1), S.Box(-np.inf, np.inf, (), np.float32)]),
})  # fmt: skip


@pytest.mark.each_value
@every_mode
@pytest.mark.parametrize("transport", ["tcp", "http"])
def test_clients_of_both_modes_get_elements_and_train(mode: Any, transport: Any) -> None:
    shown = {"action_mask": np.array([0, 1, 1], np.int8), "at": np.zeros(2, np.float32)}
    with keeping({**MASKED, "action_space": CAR}, transport) as course:
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
        backend, mask = course.algo.get_policy().networks.backend, np.tile([False, True, True], (8, 1))
        judged = backend.evaluate(0, course.column("obs"), mask, course.column("actions"))
        np.testing.assert_allclose(course.column("action_logp"), judged.logp, atol=1e-3)
        actions, inputs = course.column("actions"), course.column("action_dist_inputs")
    assert actions.shape == (8, 4)
    assert inputs.shape == (8, 9)
    np.testing.assert_array_equal(actions[:, 2], [act["gear"][0] - 1 for act in acts])
    np.testing.assert_allclose(np.clip(2 * actions[:, 0], -2, 2), [act["gas"][0] for act in acts], atol=1e-5)
    np.testing.assert_allclose(actions[:, 3], [act["gear"][1] for act in acts], atol=1e-6)
