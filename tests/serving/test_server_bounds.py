"""Clients that send more than is sampled, or vanish in the middle: what waits is bounded, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from menv import MultiAgentEnv
from menv.algorithms import DQN
from menv.serving import Limits, RLlinkInput
from tests.serving.doors import HTTP, Door, every_door
from tests.serving.served import ACTIONS, OBS, all_taken, obs_of, played, served, settled
from tests.serving.talks import eventually
from tests.serving.voices import Turns, Voice, episode

LITTLE = {"limits": Limits(max_waiting=100_000)}


def errors(voice: Voice) -> list[str]:
    """Return the codes of the answers to what was said, but for those that wait."""
    voice.tell("PING")
    found = []
    while (answer := voice.hear())["type"] != "PONG":
        found.append(answer["code"])
    return found


def test_episodes_that_nobody_samples_are_refused_once_too_much_waits() -> None:
    with served(kind=RLlinkInput, settings=LITTLE) as one, one.voice() as voice:
        for number in range(100):
            voice.tell("EPISODES", episodes=[played(200, id=f"e{number}")])
        codes = errors(voice)
        assert set(codes) == {"too_many"}
        assert 80 < len(codes) < 100
        assert 50_000 < one.envs.sessions.backlog.waiting < 110_000
        # What was taken is learned from, and there is room again.
        with one.sampling():
            assert settled(one)
            voice.bring(played(200, id="later"))
            assert all_taken(one, voice)
        assert one.paid() == 200.0 * (101 - len(codes))
        assert one.envs.sessions.backlog.waiting == 0


def test_actions_that_were_logged_and_nobody_samples_are_refused_once_too_much_waits() -> None:
    with served(settings={"limits": Limits(max_waiting=20_000)}) as one, one.voice() as voice:
        voice.ask("START_EPISODE", episode_id="e")
        answers = [
            voice.ask("LOG_ACTION", episode_id="e", observation=obs_of(0), action=0).get("code", "taken")
            for _ in range(40)
        ]
        taken = answers.count("taken")
        assert 10 < taken < 25
        assert answers == ["taken"] * taken + ["too_many"] * (40 - taken)
        info = {"text": "x" * 15_000}
        assert voice.refused("LOG_RETURNS", episode_id="e", reward=1.0, info=info) == "too_many"
        with one.sampling():
            assert eventually(lambda: one.envs.sessions.backlog.waiting == 0)
            assert voice.ask("LOG_RETURNS", episode_id="e", reward=1.0, info=info)["type"] == "OK"
            assert voice.ask("LOG_ACTION", episode_id="e", observation=obs_of(0), action=0)["type"] == "OK"


def test_requests_that_wait_for_the_sampler_are_bounded() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        for _ in range(100):
            voice.tell("EPISODES_AND_GET_STATE", episodes=[], form="weights")
        assert errors(voice) == ["too_many"] * (100 - 64)
        with one.sampling():
            assert {voice.hear()["type"] for _ in range(64)} == {"SET_STATE"}
            assert voice.ask("EPISODES_AND_GET_STATE", episodes=[], form="weights")["type"] == "SET_STATE"
            assert voice.ask("GET_STATE", form="weights")["type"] == "SET_STATE"


def test_a_message_that_comes_again_and_again_is_answered_a_few_times() -> None:
    with served() as one, one.voice() as voice:
        turns = Turns(voice, "e")
        turns.tell("GET_ACTION", observation=obs_of(0))
        for _ in range(99):
            turns.tell_again()
        assert errors(voice) == ["too_many"] * (100 - 16)
        with one.sampling():
            assert {voice.hear()["type"] for _ in range(16)} == {"ACTION"}


class Crowd(MultiAgentEnv):
    """Says nothing of the agents that there may be."""

    def __init__(self, config: Any = None) -> None:
        self.observation_space, self.action_space = OBS, ACTIONS
        self.possible_agents, self.agents = [], []


def test_agents_of_an_episode_are_bounded_at_once_and_one_after_the_other() -> None:
    one_policy = {
        "policies": {"p": (None, OBS, ACTIONS, {})},
        "policy_mapping_fn": lambda agent_id, **kwargs: "p",
    }
    crowd: dict[str, Any] = {"env": Crowd, "observation_space": None, "action_space": None}
    with (
        served(**crowd, multiagent=one_policy, settings={"limits": Limits(max_agents=4)}) as one,
        one.sampling(),
        one.voice(HTTP) as voice,
    ):
        voice.greet()
        turns = Turns(voice, "e")
        assert turns.act(dict.fromkeys("abcd", obs_of(0))).keys() == set("abcd")
        many = dict.fromkeys("abcde", obs_of(0))
        assert voice.refused("GET_ACTION", episode_id="e", observation=many) == "too_many"

        def bring(*agents: str) -> Any:
            parts = {name: episode([obs_of(0), obs_of(1)], [0], [1.0]) | {"t": 0} for name in agents}
            entry = {"id": "z", "is_terminated": False, "is_truncated": False, "agents": parts}
            return voice.ask("EPISODES", episodes=[entry]).get("code", "OK")

        def asked(*agents: str) -> Any:
            return voice.ask("GET_POLICIES", episode_id="x", agent_ids=list(agents)).get("code", "OK")

        for ask in (bring, asked):
            assert [ask("a", "b", "c"), ask("c", "d"), ask("e"), ask("a")] == ["OK", "OK", "too_many", "OK"]


# Over HTTP a client is gone that has no connection for so long.
SOON = Limits(handshake_s=0.5)


def by_chunks(voice: Voice) -> None:
    """Play one step alone."""
    voice.bring(played(1, end=""))
    voice.ping()


def by_questions(voice: Voice) -> None:
    """Ask for two actions, the first of which was paid."""
    turns = Turns(voice, "mine")
    turns.act(obs_of(0))
    turns.pay(1.0)
    turns.act(obs_of(1))


@pytest.mark.slow_unless("tcp-questions", "http-chunks")
@pytest.mark.parametrize("play", [by_chunks, by_questions], ids=["chunks", "questions"])
@every_door
def test_clients_that_vanish_leave_faulty_episodes_that_are_in_no_mean(
    door: Door, play: Callable[[Voice], None]
) -> None:
    config: dict[str, Any] = {"rollout_fragment_length": 1, "min_sample_timesteps_per_iteration": 10}
    with (
        served(DQN, RLlinkInput, (door,), settings={"limits": SOON}, **config) as one,
        one.training(),
        Voice(door, one.envs.addresses[0]) as stays,
    ):
        stays.bring(*(played(10) for _ in range(20)))
        for _ in range(20):
            with Voice(door, one.envs.addresses[0]) as voice:
                play(voice)
        assert settled(one)
        assert eventually(lambda: one.results and one.results[-1]["faulty_episodes_total"] == 20)
    last = one.results[-1]
    assert last["episodes_total"] == 20
    assert sum(result["episodes_this_iter"] for result in one.results) == 20
    assert sum(result["num_faulty_episodes"] for result in one.results) == 20
    assert (last["episode_reward_mean"], last["episode_len_mean"]) == (10.0, 10.0)
    assert "was broken off: the connection of its client ended" in last["first_fault"]
    assert last["num_env_steps_sampled"] == 20 * 10 + 20


def test_an_episode_that_its_client_gives_up_is_faulty() -> None:
    with served(kind=RLlinkInput) as one:
        with one.sampling(), one.voice() as voice:
            voice.greet()
            voice.bring(played(3, end="", id="mine"))
            voice.bring(lost=["mine", "mine", "unknown"])
            assert all_taken(one, voice)
        result = one.summary()
    assert (result["episodes_total"], result["num_faulty_episodes"]) == (0, 1)
    assert "its client gave it up" in result["first_fault"]


def many_pieces(voice: Voice, messages: int, steps: int) -> None:
    for _ in range(messages):
        voice.bring(played(steps, action_logp=[-0.7] * steps))


def test_a_fragment_closes_within_one_message_of_its_size() -> None:
    with served(kind=RLlinkInput, rollout_fragment_length=30) as one, one.voice() as voice:
        many_pieces(voice, 6, 500)
        voice.ping()
        batches = [one.algo.sample() for _ in range(6)]
        assert [batch.env_steps() for batch in batches] == [500] * 6


def test_a_fragment_of_complete_episodes_begins_no_more_of_them_when_it_is_full() -> None:
    options: dict[str, Any] = {"rollout_fragment_length": 30, "batch_mode": "complete_episodes"}
    with served(kind=RLlinkInput, **options) as one, one.voice() as voice, one.voice() as other:
        voice.bring(played(40, end=""))
        voice.ping()
        for _ in range(5):
            other.bring(played(20))
        other.ping()
        assert one.algo.sample().env_steps() == 0
        voice.bring({**played(5), "obs": [obs_of(40), *played(5)["obs"][1:]]})
        voice.ping()
        assert one.algo.sample().env_steps() == 45
        assert [one.algo.sample().env_steps() for _ in range(2)] == [40, 40]


def test_clients_take_turns_with_their_pieces() -> None:
    with (
        served(kind=RLlinkInput, rollout_fragment_length=100) as one,
        one.voice() as voice,
        one.voice() as other,
    ):
        many_pieces(voice, 5, 100)
        voice.ping()
        other.bring(played(100, weights_seq_no=1, action_logp=[-0.1] * 100))
        other.ping()
        logp = [float(one.algo.sample()["default_policy"]["action_logp"][0]) for _ in range(3)]
        assert logp == pytest.approx([-0.7, -0.1, -0.7])


@pytest.mark.parametrize("of_all", [False, True], ids=["of a client", "of all clients"])
@pytest.mark.parametrize(("kind", "fields"), [
    ("START_EPISODE", {"episode_id": "another"}),
    ("EPISODES", {"episodes": [played(1, end="", id="another")]}),
    ("GET_POLICIES", {"episode_id": "another", "agent_ids": ["agent0"]}),
])  # fmt: skip
def test_open_episodes_are_bounded_however_they_are_begun(
    kind: str, fields: dict[str, Any], of_all: bool
) -> None:
    limits = Limits(max_open_episodes=3) if of_all else Limits(max_episodes=3)
    with (
        served(settings={"limits": limits}) as one,
        one.sampling(),
        one.voice(HTTP) as first,
        one.voice(HTTP) as second,
    ):
        turns = Turns(first, "a")
        assert first.ask("GET_POLICIES", episode_id="b", agent_ids=["agent0"])["type"] == "POLICIES"
        first.bring(played(1, end="", id="c"))
        refused = (second if of_all else first).ask(kind, **fields)
        assert (refused["type"], refused["code"]) == ("ERROR", "too_many")
        assert f"3 episodes{' of all clients' * of_all} are open" in refused["message"]
        # One that was announced has its place.
        first.bring(played(1, end="", id="b"))
        turns.end(obs_of(1))
        assert second.ask(kind, **fields)["type"] != "ERROR"
        assert first.ask(kind, **fields).get("code") == ("too_many" if of_all else None)
