"""Clients that send more than anybody samples: what waits is bounded, and the others go on."""

from __future__ import annotations

from typing import Any

from menv import MultiAgentEnv
from menv.serving import Limits, RLlinkInput
from tests.serving.doors import HTTP, TCP
from tests.serving.served import ACTIONS, OBS, Served, obs_of, served, settled
from tests.serving.talks import eventually
from tests.serving.voices import Turns, Voice, episode

LITTLE = {"limits": Limits(max_waiting=100_000)}


def long_episode(**more: Any) -> Any:
    return episode([obs_of(n) for n in range(201)], [0] * 200, [1.0] * 200, "terminated", **more)


def waiting(one: Served) -> int:
    return int(one.source.sessions.backlog.waiting)


def flood(voice: Voice, count: int = 100) -> list[str]:
    """Send far more than is taken; return the codes of the answers."""
    for number in range(count):
        voice.tell("EPISODES", episodes=[long_episode(id=f"e{number}")])
    voice.tell("PING")
    answers = []
    while (answer := voice.hear())["type"] != "PONG":
        answers.append(answer["code"])
    return answers


def test_episodes_that_nobody_samples_are_refused_once_too_much_waits() -> None:
    with served(kind=RLlinkInput, settings=LITTLE) as one, one.voice() as voice:
        codes = flood(voice)
        assert set(codes) == {"too_many"}
        assert 80 < len(codes) < 100
        assert 50_000 < waiting(one) < 110_000
        # What was taken is learned from, and there is room again.
        with one.sampling():
            assert settled(one)
            voice.bring(long_episode(id="later"))
            assert voice.ask("PING") == {"type": "PONG"}
            assert settled(one)
        assert one.paid() == 200.0 * (101 - len(codes))
        assert waiting(one) == 0


def test_a_flood_of_one_client_costs_the_others_nothing() -> None:
    with served(kind=RLlinkInput, settings=LITTLE) as one, one.voice() as healthy, one.voice() as voice:
        assert "too_many" in flood(voice)
        healthy.bring(long_episode())
        with one.sampling():
            turns = Turns(healthy, "e")
            turns.act(obs_of(0))
            turns.end(obs_of(1))
        assert one.status["messages_refused"] > 0


def test_clients_that_come_and_go_do_not_pile_anything_up_either() -> None:
    with served(kind=RLlinkInput, settings=LITTLE) as one:
        for _ in range(12):
            with one.voice() as voice:
                flood(voice, 30)
        assert waiting(one) < 500_000
        with one.voice() as voice:
            assert voice.refused("EPISODES", episodes=[long_episode()]) == "too_many"
        with one.sampling():
            assert eventually(lambda: waiting(one) == 0)


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
            assert eventually(lambda: waiting(one) == 0)
            assert voice.ask("LOG_RETURNS", episode_id="e", reward=1.0, info=info)["type"] == "OK"
            assert voice.ask("LOG_ACTION", episode_id="e", observation=obs_of(0), action=0)["type"] == "OK"


def test_episodes_that_begin_and_end_and_nobody_samples_are_refused_once_too_many_wait() -> None:
    with served(settings={"limits": Limits(max_waiting=20_000)}) as one, one.voice() as voice:
        answers = []
        for number in range(40):
            answers.append(voice.ask("START_EPISODE", episode_id=f"e{number}").get("code", "begun"))
            voice.ask("END_EPISODE", episode_id=f"e{number}", observation=obs_of(0))
        assert 10 < answers.count("begun") < 25
        assert answers[-1] == "too_many"


def test_open_episodes_of_a_client_are_bounded_however_they_are_begun() -> None:
    with served(settings={"limits": Limits(max_episodes=3)}) as one, one.sampling(), one.voice(TCP) as voice:
        assert voice.ask("START_EPISODE")["type"] == "EPISODE"
        assert voice.ask("GET_POLICIES", episode_id="p", agent_ids=["agent0"])["type"] == "POLICIES"
        voice.bring({**long_episode(id="q"), "is_terminated": False})
        assert voice.refused("START_EPISODE") == "too_many"
        assert voice.refused("GET_POLICIES", episode_id="r", agent_ids=["agent0"]) == "too_many"
        assert voice.refused("EPISODES", episodes=[long_episode(id="r")]) == "too_many"
        # One that was announced has its place.
        voice.bring(long_episode(id="p"))
        assert voice.ask("START_EPISODE")["type"] == "EPISODE"


def test_requests_that_wait_for_the_sampler_are_bounded() -> None:
    with served(kind=RLlinkInput) as one, one.voice() as voice:
        for _ in range(100):
            voice.tell("EPISODES_AND_GET_STATE", episodes=[], form="weights")
        voice.tell("PING")
        codes = []
        while (answer := voice.hear())["type"] != "PONG":
            codes.append(answer["code"])
        assert codes == ["too_many"] * (100 - 64)
        with one.sampling():
            assert {voice.hear()["type"] for _ in range(64)} == {"SET_STATE"}
            assert voice.ask("GET_STATE", form="weights")["type"] == "SET_STATE"


def test_a_message_that_comes_again_and_again_is_answered_a_few_times() -> None:
    with served() as one, one.voice() as voice:
        turns = Turns(voice, "e")
        turns.tell("GET_ACTION", observation=obs_of(0))
        for _ in range(99):
            turns.tell_again()
        voice.tell("PING")
        codes = []
        while (answer := voice.hear())["type"] != "PONG":
            codes.append(answer["code"])
        assert codes == ["too_many"] * (100 - 16)
        with one.sampling():
            assert {voice.hear()["type"] for _ in range(16)} == {"ACTION"}


def test_agents_of_an_episode_are_bounded() -> None:
    import gymnasium as gym

    from tests.serving.test_interactive import TWO

    one_space: dict[str, Any] = {"ann": gym.spaces.Box(-1, 1, (2,)), "bob": gym.spaces.Box(-1, 1, (3,))}
    assert set(one_space) == set(TWO["observation_space"])
    with (
        served(**TWO, settings={"limits": Limits(max_agents=1)}) as one,
        one.sampling(),
        one.voice() as voice,
    ):
        turns = Turns(voice, "e")
        both = {"ann": [0, 0], "bob": [0, 0, 0]}
        assert voice.refused("GET_ACTION", episode_id="e", observation=both) == "too_many"
        assert voice.refused("GET_POLICIES", episode_id="f", agent_ids=["ann", "bob"]) == "too_many"
        assert set(turns.act({"ann": [0, 0]})) == {"ann"}


class Crowd(MultiAgentEnv):
    """Says nothing of the agents that there may be."""

    def __init__(self, config: Any = None) -> None:
        self.observation_space, self.action_space = OBS, ACTIONS
        self.possible_agents, self.agents = [], []


def test_agents_of_an_episode_are_bounded_also_where_they_come_one_after_the_other() -> None:
    crowd: dict[str, Any] = {
        "env": Crowd,
        "observation_space": None,
        "action_space": None,
        "multiagent": {
            "policies": {"p": (None, OBS, ACTIONS, {})},
            "policy_mapping_fn": lambda agent_id, **kwargs: "p",
        },
    }
    with (
        served(**crowd, settings={"limits": Limits(max_agents=4)}) as one,
        one.sampling(),
        one.voice(HTTP) as voice,
    ):
        voice.greet()

        def bring(*agents: str) -> Any:
            parts = {name: episode([obs_of(0), obs_of(1)], [0], [1.0]) | {"t": 0} for name in agents}
            entry = {"id": "z", "is_terminated": False, "is_truncated": False, "agents": parts}
            return voice.ask("EPISODES", episodes=[entry]).get("code", "taken")

        def asked(*agents: str) -> Any:
            return voice.ask("GET_POLICIES", episode_id="x", agent_ids=list(agents)).get("code", "told")

        assert [bring("a", "b", "c"), bring("c", "d"), bring("e"), bring("a")] == [
            "taken",
            "taken",
            "too_many",
            "taken",
        ]
        assert [asked("a", "b", "c"), asked("c", "d"), asked("e"), asked("a")] == [
            "told",
            "told",
            "too_many",
            "told",
        ]
