"""Clients are answered while the server learns: with the weights that were published last."""

from __future__ import annotations

import base64
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.callbacks import DefaultCallbacks
from menv.envs import RandomMultiAgentEnv
from menv.inference.policy_bundle import policy_from_bytes, unpack_weights
from menv.policy_spec import PolicySpec
from menv.serving import PolicyClient, PolicyServerInput, RLlinkInput
from menv.serving.protocol import Episodes, GetState
from tests.serving.courses import Course, observation, playing
from tests.serving.doors import HTTP, TCP, WEBSOCKET, Door
from tests.serving.served import Served, obs_of, served
from tests.serving.talks import eventually
from tests.serving.voices import Voice, episode

PATIENCE_S = 20.0
TEAMS: dict[str, Any] = {
    "env": RandomMultiAgentEnv,
    "env_config": {"num_agents": ["red_0", "blue_0"]},
    "observation_space": None,
    "action_space": None,
    "multiagent": {
        "policies": ["red", "blue"],
        "policy_mapping_fn": lambda agent_id, **kwargs: agent_id.partition("_")[0],
    },
}
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


def bring(voice: Voice, steps: int = 40) -> None:
    """Bring enough for a train batch."""
    rows = [obs_of(number) for number in range(steps + 1)]
    voice.bring(episode(rows, [0] * steps, [1.0] * steps, "terminated"))


def learns(one: Served, lesson: Lesson) -> None:
    """Wait until the algorithm learns."""
    with one.voice() as voice:
        bring(voice)
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


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("door", [TCP, HTTP, WEBSOCKET], ids=lambda door: door.name)
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


def test_clients_are_answered_before_and_between_calls_of_train() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        answered(voice, 1)
        bring(voice)
        one.algo.train()
        answered(voice, 2)


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
        bring(voice)
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


def test_several_policies_are_told_and_sent_while_one_is_added(lesson: Lesson) -> None:
    with served(callbacks=lesson, **TEAMS) as one, one.training(), one.voice() as voice:
        voice.greet()
        rows = {
            agent: {"t": 0, **episode(np.zeros((41, 10)).tolist(), [0] * 40, [1.0] * 40, "terminated")}
            for agent in ("red_0", "blue_0")
        }
        voice.bring({"id": "e", "agents": rows, "is_terminated": True, "is_truncated": False})
        assert lesson.begun.wait(PATIENCE_S)
        adding = threading.Thread(target=one.algo.add_policy, args=("green", PolicySpec()), daemon=True)
        adding.start()
        told = voice.ask("GET_POLICIES", episode_id="f", agent_ids=["red_0", "blue_0"])
        assert told["policy_ids"] == {"red_0": "red", "blue_0": "blue"}
        assert voice.ask("GET_STATE", form="bundle")["bundles"].keys() == {"red", "blue"}
        lesson.over.set()
        adding.join(PATIENCE_S)
        bundles = voice.ask("GET_STATE", form="bundle")["bundles"]
        assert bundles.keys() == {"red", "blue", "green"}


def test_threads_that_set_weights_at_once_publish_one_number_each() -> None:
    faults: list[BaseException] = []

    def set_weights() -> None:
        try:
            for _ in range(100):
                one.algo.set_weights(weights)
        except Exception as fault:
            faults.append(fault)

    with served() as one, one.voice() as voice:
        weights = one.algo.get_weights()
        threads = [threading.Thread(target=set_weights) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not faults
        assert voice.ask("GET_STATE")["weights_seq_no"] == 301


def test_clients_are_answered_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    with served() as one, one.voice() as voice:
        states = []
        saving = threading.Event()

        def ask() -> None:
            while not saving.is_set():
                states.append(voice.ask("GET_STATE", form="bundle"))

        asking = threading.Thread(target=ask)
        asking.start()
        folders = [one.algo.save(tmp_path / f"{number}") for number in range(3)]
        saving.set()
        asking.join(PATIENCE_S)
        assert {state["weights_seq_no"] for state in states} == {1}
        assert len(folders) == 3


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


def test_a_local_client_acts_on_while_weights_are_under_way_and_the_server_learns(lesson: Lesson) -> None:
    with (
        Course({"callbacks": lesson}, trains=True, force_on_policy=False) as course,
        PolicyClient(course.address, "local", update_interval=0.01) as client,
    ):
        name = client.start_episode()
        for number in range(200):
            client.get_action(name, observation(number))
            client.log_returns(name, 1.0)
            time.sleep(0.001)
        assert lesson.begun.wait(PATIENCE_S)
        assert client.weights_seq_no == 1
        lesson.over.set()

        def newer() -> bool:
            client.get_action(name, observation(0))
            client.log_returns(name, 1.0)
            return (client.weights_seq_no or 0) > 2

        assert eventually(newer)
        client.end_episode(name, observation(0))


def test_actions_are_chosen_while_the_answer_with_new_weights_is_awaited() -> None:
    with (
        Course(force_on_policy=False) as course,
        PolicyClient(course.address, "local", update_interval=0.001) as client,
    ):
        name = client.start_episode()
        client.get_action(name, observation(0))
        assert client._actor is not None
        link, arrived = client._actor._server, threading.Event()
        ask = link.ask

        def slowly(request: Any, **how: Any) -> Any:
            if isinstance(request, GetState):
                assert arrived.wait(PATIENCE_S)
            return ask(request, **how)

        link.ask = slowly  # type: ignore[method-assign]
        course.algo.set_weights(course.algo.get_weights())
        for number in range(100):
            time.sleep(0.001)
            client.log_returns(name, 1.0)
            client.get_action(name, observation(number))
        assert client.weights_seq_no == 1
        arrived.set()
        assert eventually(lambda: client.weights_seq_no == 2)
        client.log_returns(name, 1.0)
        client.end_episode(name, observation(0))
        client.close()
        assert course.has_rewards([1.0] * 101)


def test_actions_are_chosen_while_the_server_takes_a_message_slowly_and_what_waits_is_bounded() -> None:
    with playing("local", force_on_policy=False) as (course, client):
        name = client.start_episode()
        client.get_action(name, observation(0))
        assert client._actor is not None
        link, arrived, played, over = client._actor._server, threading.Event(), [0], threading.Event()
        ask = link.ask

        def slowly(request: Any, **settings: Any) -> Any:
            assert type(request) is not Episodes or arrived.wait(PATIENCE_S)
            return ask(request, **settings)

        def play() -> None:
            for number in range(2_000):
                client.log_returns(name, 1.0)
                client.get_action(name, observation(number % 100))
                played[0] += 1
            over.set()

        link.ask = slowly  # type: ignore[method-assign]
        thread = threading.Thread(target=play)
        thread.start()
        # Messages have 8 steps.
        assert eventually(lambda: played[0] > 8 * 60)
        assert not over.wait(0.3)
        assert played[0] < 8 * 70
        arrived.set()
        assert over.wait(PATIENCE_S)
        thread.join(PATIENCE_S)
        client.log_returns(name, 1.0)
        client.end_episode(name, observation(0))
        client.close()
        assert course.has_rewards([1.0] * 2_001)


def test_threads_take_shorter_turns_while_servers_run_and_usual_ones_afterwards() -> None:
    usual = sys.getswitchinterval()
    with served():
        with served():
            assert sys.getswitchinterval() == pytest.approx(0.001)
        assert sys.getswitchinterval() == pytest.approx(0.001)
    assert sys.getswitchinterval() == pytest.approx(usual)


@pytest.mark.alone
@pytest.mark.slow
def test_a_learner_in_plain_python_lets_the_serving_thread_have_its_turn() -> None:
    longest: list[float] = []

    class Busy(DefaultCallbacks):
        def on_learn_on_batch(self, **_: Any) -> None:
            end = time.monotonic() + 4.0
            asking = threading.Thread(target=ask)
            asking.start()
            while time.monotonic() < end:
                sum(range(1000))
            asking.join(PATIENCE_S)

    def ask() -> None:
        for number in range(20):
            begun = time.monotonic()
            with one.voice() as voice:
                voice.greet()
                voice.ask("GET_STATE", form="weights")
                voice.ask("GET_POLICIES", episode_id=f"{number}", agent_ids=["agent0"])
            longest.append(time.monotonic() - begun)

    with served(PPO, PolicyServerInput, callbacks=Busy) as one, one.voice() as voice:
        voice.ask("GET_STATE", form="weights")
        bring(voice)
        one.algo.train()
    assert len(longest) == 20
    # Three requests and a connection, in the process that learns.
    assert sorted(longest)[10] < 0.5
