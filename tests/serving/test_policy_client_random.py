"""Several agents played in any order that there is, over connections cut anywhere: each reward arrives once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.serving.client import client_session
from menv.serving.client.policy_client import PolicyClient
from menv.serving.policy_server import PolicyServerInput
from tests.serving.courses import Wire
from tests.serving.doors import HTTP, TCP, WEBSOCKET, Door
from tests.serving.served import PLACES, served, settled
from tests.serving.test_policy_client_policies import TEAMS

AGENTS = ("red_0", "red_1", "blue_0")
SEEN = np.zeros(10, np.float32)
SCHEMES = {TCP: "tcp", HTTP: "http", WEBSOCKET: "ws"}
ROUNDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))]


def some(chance: random.Random, share: float) -> list[str]:
    return [agent for agent in AGENTS if chance.random() < share]


def play(client: PolicyClient, chance: random.Random, calls: int, logs: bool) -> float:
    """Make so many calls, end what is open, and return what was paid."""
    paid, names = 0, list[str]()
    total = 0.0
    for _ in range(calls):
        what = chance.random()
        if not names or (what < 0.1 and len(names) < 4):
            names.append(client.start_episode())
            continue
        name = chance.choice(names)
        if what < 0.5:
            obs = dict.fromkeys(some(chance, 0.6), SEEN)
            if logs and chance.random() < 0.3:
                client.log_action(name, obs, dict.fromkeys(obs, 0))
            else:
                client.get_action(name, obs)
        elif what < 0.92:
            rewards = {agent: float(paid + k) for k, agent in enumerate(some(chance, 0.5), 1)}
            paid += len(rewards)
            total += sum(rewards.values())
            infos = {agent: {"x": 1} for agent in rewards} if chance.random() < 0.3 else None
            client.log_returns(name, rewards, infos, dict.fromkeys(some(chance, 0.15), True))
        else:
            names.remove(name)
            client.end_episode(name, dict.fromkeys(some(chance, 0.6), SEEN), chance.random() < 0.5)
    for name in names:
        client.end_episode(name, {})
    return total


@pytest.mark.slow_unless("*-0")
@pytest.mark.parametrize("seed", ROUNDS)
@pytest.mark.parametrize("door", [TCP, HTTP, WEBSOCKET], ids=lambda door: door.name)
@pytest.mark.parametrize("mode", ["local", "remote"])
def test_every_reward_arrives_once_whoever_comes_goes_and_is_paid_when(
    mode: Any, door: Door, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_session, "_LONGEST_PAUSE_S", 0.05)
    chance, remote = random.Random(f"{seed} {mode} {door.name}"), mode == "remote"
    settings = {
        "env_steps_per_sample": chance.choice([1, 4, 16]),
        "force_on_policy": chance.choice([None, False]),
    }
    # PPO leaves out what the application has done itself.
    with served(DQN if remote else PPO, PolicyServerInput, settings=settings, **TEAMS) as one:
        wire = Wire(
            one.envs.addresses[PLACES[door]][1], seed, chance.choice([3, 20]), chance.choice([800, 8000])
        )
        address = f"{SCHEMES[door]}://127.0.0.1:{wire.port}"
        try:
            with one.sampling():
                interval = chance.choice([None, 0.01])
                with PolicyClient(address, mode, update_interval=interval, timeout=30) as client:
                    total = play(client, chance, chance.choice([60, 200]), logs=remote)
                assert settled(one)
        finally:
            wire.close()
        assert one.paid() == total
        assert one.refused == 0
