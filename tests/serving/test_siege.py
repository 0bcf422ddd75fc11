"""Damaged frames and dying clients beside a healthy one: it loses nothing, and nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from menv.callbacks import DefaultCallbacks
from menv.serving import Limits, RLlinkInput
from tests.engines.processes import open_files, resident
from tests.serving.corpus import ACTIONS, OBS, Damage
from tests.serving.doors import DOORS, HTTP, PATIENCE_S, TCP, Client, Door, every_door
from tests.serving.served import Served, obs_of, played, served, settled
from tests.serving.talks import eventually
from tests.serving.test_sessions import STATES
from tests.serving.voices import Turns, Voice

FUZZED = 20_000
LAST = b'{"type": "THE LAST"}'
KILLS = 30


class Healthy:
    """A client that plays all the time in a thread of its own, and is paid 10 in each episode."""

    def __init__(self, one: Served, door: Door = TCP) -> None:
        self.episodes = 0
        self.width = one.envs.observation_space.shape[0]
        self._voice = one.voice(door)
        self._stopping = threading.Event()

    def _run(self) -> None:
        while not self._stopping.is_set():
            turns = Turns(self._voice, f"healthy {self.episodes}")
            for step in range(5):
                assert turns.act([step / 10] * self.width) in (0, 1)
                turns.pay(step)
            turns.end([0.5] * self.width)
            self.episodes += 1

    @contextlib.contextmanager
    def playing(self) -> Iterator[Healthy]:
        self._voice.greet()
        with self._voice, ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._run)
            try:
                yield self
            finally:
                self._stopping.set()
                running.result(30)


def damaged(damage: Damage, draw: random.Random, door: Door, count: int, whole: bool) -> bytes:
    """Return bodies as they go over the wire, and where they need not be whole, a frame that is damaged itself."""
    sent = b"".join(door.wrap(damage.body()) for _ in range(count))
    if not whole:
        # Also in the headers of HTTP.
        last = door.wrap(damage.body())
        at = draw.randrange(draw.choice((8, min(len(last), 150))))
        sent += last[:at] + draw.randbytes(draw.choice((1, 2, 300))) + last[at + draw.choice((0, 1, 20)) :]
    return sent


def fuzz(one: Served, door: Door, count: int, seed: int, each: int = 50) -> None:
    """Send so many bodies, some on each connection.

    Half of the connections are left with replies unread, which resets them at any time; on the others everything is
    answered first.
    """
    damage, draw = Damage(seed), random.Random(seed)
    for number in range(0, count, each):
        whole = number // each % 2 == 1
        with (
            Client(door, one.envs.addresses[DOORS.index(door)]) as client,
            contextlib.suppress(ConnectionError, TimeoutError),
        ):
            client.raw(damaged(damage, draw, door, each, whole))
            if whole:
                client.raw(door.wrap(LAST))
                seen = client.socket.recv(100_000)
                while seen and b"THE LAST" not in seen:
                    seen = seen[-10:] + client.socket.recv(100_000)


class Ends(DefaultCallbacks):
    """Notes what the healthy client's episodes came to, by the client's own ids."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[float, int]] = {}

    def on_episode_end(self, *, episode: Any, **_: Any) -> None:
        name = str(episode.env_id).partition("/")[2]
        if name.startswith("healthy"):
            assert name not in self.seen
            self.seen[name] = episode.total_reward, episode.length


@contextlib.contextmanager
def beside_a_healthy_client(door: Door = TCP, **config: Any) -> Iterator[tuple[Served, Healthy]]:
    """Train with a healthy client, which must lose nothing."""
    with served(callbacks=Ends, **config) as one:
        with one.training():
            with Healthy(one, door).playing() as healthy:
                yield one, healthy
            ends = one.algo._callbacks
            assert isinstance(ends, Ends)
            assert eventually(lambda: len(ends.seen) == healthy.episodes)
        assert ends.seen == {f"healthy {number}": (10.0, 5) for number in range(healthy.episodes)}


def siege(count: int) -> int:
    """Fuzz through all doors beside a healthy client, which must lose nothing; return how far memory grew."""
    with beside_a_healthy_client(observation_space=OBS, action_space=ACTIONS, train_batch_size=512) as (
        one,
        healthy,
    ):
        fuzz(one, TCP, count // 10, seed=1)
        gc.collect()
        before, threads, files = resident(), threading.active_count(), len(open_files())
        for place, door in enumerate(DOORS):
            fuzz(one, door, count * 3 // 10, seed=2 + place)
        grown = resident() - before
        assert one.refused > count // 4
        assert healthy.episodes > 1
        assert eventually(lambda: len(open_files()) <= files)
        assert threading.active_count() <= threads
    return grown


@pytest.mark.parametrize("count", [1_000, pytest.param(FUZZED, marks=pytest.mark.slow)])
def test_damaged_frames_cost_a_healthy_client_nothing(count: int) -> None:
    assert siege(count) < 60_000_000


@pytest.mark.slow_unless("tcp")
@every_door
def test_three_hundred_slow_or_silent_connections_cost_a_healthy_client_nothing(door: Door) -> None:
    limits = Limits(max_connections=400, handshake_s=600.0)
    message = door.wrap(LAST)
    with beside_a_healthy_client(door, settings={"limits": limits}) as (one, healthy):
        address = one.envs.addresses[DOORS.index(door)]
        crowd = [Client(door, address) for _ in range(300)]
        silent, halved, dripping = (crowd[place::3] for place in range(3))
        for peer in halved:
            peer.raw(message[: len(message) // 2])
        for at in range(20):
            for peer in dripping:
                peer.raw(message[at : at + 1])
        assert eventually(lambda: one.envs.server.connections == 301)
        before = healthy.episodes
        with one.voice(door) as late:
            late.ping()
        assert eventually(lambda: healthy.episodes >= before + 2)
        assert one.envs.server.connections >= 301
        for peer in (*silent, *halved, *dripping):
            peer.leave()
        assert eventually(lambda: one.envs.server.connections == 1)


def actions_in(turns: Turns, seconds: float) -> int:
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turns.act(obs_of(count % 5))
        count += 1
    return count


@pytest.mark.alone
@pytest.mark.parametrize("field", ["episodes", "x"])
def test_a_client_that_sends_large_bodies_without_a_pause_leaves_time_to_the_others(field: str) -> None:
    large = [played(12_000)]
    body = json.dumps({"type": "EPISODES" if field == "episodes" else "PING", field: large}).encode()
    shares = []
    with (
        served(settings={"limits": Limits(max_waiting=500_000)}) as one,
        one.sampling(),
        one.voice() as healthy,
    ):
        turns = Turns(healthy, "e")
        for _ in range(3):
            alone = actions_in(turns, 0.3)
            with Client(TCP, one.envs.addresses[0]) as rude, ThreadPoolExecutor(2) as pool:
                pool.submit(rude.rest)
                sending = pool.submit(send_for_ever, rude, TCP.wrap(body))
                time.sleep(0.1)
                shares.append(actions_in(turns, 0.3) / alone)
                rude.socket.shutdown(socket.SHUT_RDWR)
                sending.result(PATIENCE_S)
    assert statistics.median(shares) > 1 / 5


def test_a_short_message_is_handled_between_the_large_ones_of_other_clients() -> None:
    def told(steps: int) -> bytes:
        return json.dumps({"type": "EPISODES", "episodes": [played(steps)]}).encode()

    with served(kind=RLlinkInput) as one, contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(one.voice()) for _ in range(9)]
        for voice in crowd:
            voice.ping()
        ready = threading.Event()
        # The short one is the last that comes.
        one.envs.server.post(ready.wait)
        for voice in crowd[:8]:
            voice.send(told(8_000).rjust(900_000))
            time.sleep(0.01)
        crowd[8].send(told(1))
        time.sleep(0.1)
        ready.set()
        for voice in crowd:
            voice.ping()
        lengths = one.sample(64_001)["default_policy"].segments.lengths.tolist()
    assert sorted(lengths) == [1, *[8_000] * 8]
    assert lengths.index(1) < 4


def send_for_ever(rude: Client, frame: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            rude.raw(frame)


OF_ALL: list[Callable[[Turns], object]] = [
    *(bring for bring, _ in STATES.values()),
    lambda turns: turns.voice.raw(b"00000100{"),
    lambda turns: turns.voice.tell("EPISODES", episodes=[played(1, "")]),
    lambda turns: turns.voice.tell("EPISODES_AND_GET_STATE", episodes=[played(1, "")]),
]
HALF_A_FRAME = OF_ALL[len(STATES)]


def kill(one: Served, number: int) -> bool:
    """Bring a client into one of all states and reset its connection; return whether its episode stays open.

    HTTP has no connection that could be lost.
    """
    voice: Voice = one.voice(HTTP if number % 9 in (1, 4) else TCP)
    if number % 2:
        voice.greet()
    bring, over_http = OF_ALL[number % len(OF_ALL)], voice.door is HTTP
    if bring is not HALF_A_FRAME or not over_http:
        bring(Turns(voice, "e"))
    voice.reset()
    return over_http and bring is not HALF_A_FRAME


def test_clients_that_are_killed_in_every_state_leave_nothing_behind_and_training_continues() -> None:
    # What is left over HTTP stays for as long as this takes.
    with served(settings={"return_s": 0.05, "limits": Limits(handshake_s=600.0)}) as one:
        with one.training():
            with Healthy(one).playing() as healthy:
                left = int(kill(one, 0))
                # One more thread encodes weights.
                threads, files = threading.active_count() + 1, len(open_files())
                for number in range(KILLS):
                    left += kill(one, number)
                    if number % 10 == 0:
                        with one.voice() as next_one:
                            next_one.ping()
                assert eventually(lambda: one.status["open_episodes"] <= 1 + KILLS)
                assert threading.active_count() <= threads
                assert eventually(lambda: len(open_files()) <= files)
                assert eventually(lambda: any(result["num_env_steps_trained"] for result in one.results))
            assert healthy.episodes > 1
            assert settled(one, episodes=left)
        assert one.status["server_faults"] == 0


@pytest.mark.soak
def test_a_hundred_thousand_episodes_through_one_server_leave_nothing_behind() -> None:
    sent = [played(3)] * 100
    with served() as one, one.training(), one.voice() as voice:

        def play_some(count: int) -> None:
            for _ in range(count // 100):
                assert (
                    voice.ask("EPISODES_AND_GET_STATE", episodes=sent, form="weights")["type"] == "SET_STATE"
                )
                one.results.clear()
            gc.collect()

        play_some(20_000)
        before = resident()
        play_some(100_000)
        grown = resident() - before
        assert grown < 10_000_000, f"{grown / 1e6:.1f} MB"
