"""Rounds: what is asked for in columns comes to the same as what is asked for turn by turn, whatever else is said."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.adapters.episode_broker import EpisodeBroker
from menv.adapters.episode_channel import STEP_BYTES, ActionCall, ByteBudget, LoggedReturns, RequestBatch
from menv.adapters.external import ExternalEnvs, RequestSource
from menv.base_env import SINGLE_AGENT, Ready
from menv.errors import CallOrderError, ContractError, EpisodeError

SPACES: dict[str, Any] = {
    "observation_space": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "action_space": gym.spaces.Discrete(3),
}


class Player:
    """A side that is told the same as the other one, and what came of it."""

    def __init__(self, envs: ExternalEnvs) -> None:
        self.envs = envs
        self.board = envs.broker
        self.backlog = ByteBudget()
        self.heard: dict[str, list[Any]] = {}
        self.rounds = 0

    def start(self, name: str) -> None:
        self.board.start(name, budget=ByteBudget(self.backlog))

    def ask(self, names: Sequence[str], obs: Any, rewards: Sequence[float]) -> list[str]:
        """Ask for the actions of several episodes; return in which of them that was refused."""
        calls: list[ActionCall] = [
            (name, {SINGLE_AGENT: own}, self._answer(name), 10, _paid(reward))
            for name, own, reward in zip(names, obs, rewards, strict=True)
        ]
        return sorted(call[0] for call, _ in self.board.request_many(calls))

    def _answer(self, name: str) -> Any:
        def answer(actions: Mapping[Any, Any] | BaseException) -> None:
            told = str(actions) if isinstance(actions, BaseException) else actions.get(SINGLE_AGENT)
            self.heard.setdefault(name, []).append(told)

        return answer

    def poll(self) -> Ready:
        ready: Ready = self.envs.poll(0.0)
        return ready

    def say(self, call: str, *args: Any, **more: Any) -> str | None:
        """ActionCall the broker; return how it refuses."""
        try:
            getattr(self.board, call)(*args, **more)
        except (EpisodeError, CallOrderError) as error:
            return str(error)
        return None


class InRounds(Player):
    """Asks for whole rounds wherever it may."""

    @property
    def uncounted(self) -> int:
        """What the round that waits would count for, turn by turn."""
        waiting = self.board._batch
        return 0 if waiting is None else (10 + STEP_BYTES) * len(waiting.channels)

    def ask(self, names: Sequence[str], obs: Any, rewards: Sequence[float]) -> list[str]:
        answers = [self._answer(name) for name in names]
        if self.board.request_batch(RequestBatch(names, obs, np.array(rewards), answers, _together)):
            self.rounds += 1
            return []
        return super().ask(names, obs, rewards)


def _together(answers: Sequence[Any], actions: Any) -> None:
    for place, answer in enumerate(answers):
        answer(actions if isinstance(actions, BaseException) else {SINGLE_AGENT: actions[place]})


def _paid(reward: float) -> LoggedReturns | None:
    return ({SINGLE_AGENT: reward}, {}, {}, 0) if reward else None


def both() -> tuple[InRounds, Player]:
    return InRounds(ExternalEnvs(RequestSource(EpisodeBroker()), **SPACES)), Player(
        ExternalEnvs(RequestSource(EpisodeBroker()), **SPACES)
    )


def rows(ready: Ready) -> dict[Any, Any]:
    """Return the rows by who waits."""
    return {
        ready.seats[slot]: (tuple(np.asarray(ready.obs[row]).tolist()), float(ready.rewards[row]))
        for row, slot in enumerate(ready.slots.tolist())
    }


def told(ready: Ready) -> list[Any]:
    """Return what else a poll says, and the rows."""
    ended = sorted((end.env_id, end.reward, end.terminated, end.withdrawn) for end in ready.ended)
    return [
        rows(ready),
        ready.env_steps.tolist(),
        sorted(join.env_id for join in ready.joined),
        ended,
        sorted((one.env_id, one.env_steps, one.truncated) for one in ready.episodes),
        sorted(ready.unclaimed),
        {ready.seats[slot]: action for slot, action in ready.taken.items()},
    ]


def send(player: Player, ready: Ready, how: str, draws: random.Random) -> None:
    """Answer all rows, as they came, or one after the other in any order."""
    actions = {seat: hash(found) % 3 for seat, found in rows(ready).items()}
    by_slot = {slot: actions[ready.seats[slot]] for slot in ready.slots.tolist()}
    if how == "in order":
        player.envs.send_actions(ready.slots, [by_slot[slot] for slot in ready.slots.tolist()])
        return
    # The rows of the two sides may come in another order.
    slots = sorted(by_slot, key=lambda slot: str(ready.seats[slot]))
    draws.shuffle(slots)
    for some in (slots[::2], slots[1::2]):
        if some:
            player.envs.send_actions(np.array(some), [by_slot[slot] for slot in some])


def moves(draws: random.Random, open_ones: list[str]) -> list[tuple[Any, ...]]:
    """Return what is said between two polls."""
    names = draws.sample(open_ones, draws.randint(0, len(open_ones)))
    said: list[tuple[Any, ...]] = []
    paid = [draws.choice([0.0, 0.0, 1.5]) for _ in names]
    if names:
        said.append(
            ("ask", names, np.array([[draws.random(), draws.random()] for _ in names], np.float32), paid)
        )
    for name in open_ones:
        kind = draws.choice(["nothing"] * 12 + ["pay", "log", "end", "lose", "done", "ask"])
        shown = {SINGLE_AGENT: np.array([draws.random(), 1.0], np.float32)}
        calls: dict[str, list[tuple[Any, ...]]] = {
            "nothing": [],
            "pay": [("log_returns", name, {SINGLE_AGENT: 2.0})],
            "log": [("log_action", name, shown, {SINGLE_AGENT: 1}, False)],
            "end": [("end", name, shown)],
            "lose": [("lose", [name], "it is a test")],
            "done": [("log_returns", name, {SINGLE_AGENT: 3.0}, None, {SINGLE_AGENT: True})],
            "ask": [("ask", [name], np.array([[draws.random(), 2.0]], np.float32), [0.0])],
        }
        said += calls[kind]
    if draws.random() < 0.3:
        draws.shuffle(said)
    return said


def tell(player: Player, said: tuple[Any, ...]) -> Any:
    call, *args = said
    if call == "ask":
        return player.ask(*args)
    if call == "log_action":
        return player.say("log_action", *args[:3], wait=args[3])
    return player.say(call, *args)


def talk(sides: tuple[InRounds, Player], draws: random.Random, names: Sequence[str]) -> None:
    """Say the same on both sides."""
    one, other = sides
    for said in moves(draws, [name for name in names if name in one.board._channels]):
        assert tell(one, said) == tell(other, said), said
        assert one.backlog.waiting + one.uncounted == other.backlog.waiting
        assert (one.board.ready > 0) == (other.board.ready > 0)


@pytest.mark.parametrize("seed", range(30))
def test_rounds_come_to_the_same_as_turns(seed: int) -> None:
    draws = random.Random(seed)
    in_rounds, turn_by_turn = sides = both()
    names: list[str] = []
    for number in range(60):
        if number < 8 or draws.random() < 0.2:
            names.append(f"e{number}")
            for side in sides:
                side.start(names[-1])
        talk(sides, draws, names)
        assert in_rounds.envs.held_rewards() == turn_by_turn.envs.held_rewards()
        found = [side.poll() for side in sides]
        assert told(found[0]) == told(found[1])
        if draws.random() < 0.3:
            talk(sides, draws, names)
        how, order = draws.choice(["in order"] * 4 + ["in parts"]), draws.random()
        for side, ready in zip(sides, found, strict=True):
            send(side, ready, how, random.Random(order))
        assert in_rounds.heard == turn_by_turn.heard
        assert in_rounds.board.expected == turn_by_turn.board.expected
    assert in_rounds.rounds > 3


def steady(count: int) -> tuple[InRounds, list[str]]:
    """Return a side with episodes whose next questions may be a round."""
    side, names = both()[0], [f"e{number}" for number in range(count)]
    for name in names:
        side.start(name)
    assert not side.ask(names, np.zeros((count, 2), np.float32), [0.0] * count)
    assert side.rounds == 0
    ready = side.poll()
    side.envs.send_actions(ready.slots, [0] * count)
    return side, names


def test_observations_of_a_round_are_delivered_as_the_array_that_they_were() -> None:
    side, names = steady(3)
    obs = np.ones((3, 2), np.float32)
    side.ask(names, obs, [0.0, 1.0, 0.0])
    ready = side.poll()
    assert ready.obs is obs
    assert ready.rewards.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("taken", [False, True])
def test_who_waits_in_a_round_is_told_once_that_nobody_samples_any_more(taken: bool) -> None:
    side, names = steady(3)
    side.ask(names, np.ones((3, 2), np.float32), [0.0] * 3)
    ready = side.poll() if taken else None
    side.envs.stop()
    assert all("training has stopped" in side.heard[name][1] for name in names)
    if ready is not None:
        side.envs.send_actions(ready.slots, [1] * 3)
    assert {name: len(told) for name, told in side.heard.items()} == dict.fromkeys(names, 2)


def test_an_episode_that_is_there_twice_makes_no_round() -> None:
    side, names = steady(2)
    refused = side.ask([*names, names[0]], np.ones((3, 2), np.float32), [0.0] * 3)
    assert (side.rounds, refused) == (0, [names[0]])


def test_too_few_answers_to_a_round_are_refused_and_nobody_is_told() -> None:
    side, names = steady(3)
    side.ask(names, np.ones((3, 2), np.float32), [0.0] * 3)
    ready = side.poll()
    with pytest.raises(ContractError, match="got 2 actions for 3 slots"):
        side.envs.send_actions(ready.slots, [1, 2])
    assert {len(told) for told in side.heard.values()} == {1}
    side.envs.send_actions(ready.slots, [1, 2, 0])
    assert [side.heard[name][1] for name in names] == [1, 2, 0]


def test_episodes_of_several_agents_are_no_part_of_rounds() -> None:
    side = both()[0]
    side.start("team")
    side.board.request_actions(
        "team", {"ann": np.zeros(2, np.float32), "bob": np.zeros(2, np.float32)}, lambda _: None
    )
    ready = side.poll()
    side.envs.send_actions(ready.slots, [0, 0])
    side.ask(["team"], np.zeros((1, 2), np.float32), [0.0])
    assert side.rounds == 0
