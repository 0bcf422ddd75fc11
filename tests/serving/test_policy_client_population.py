"""Clients that act by themselves while policies come and go."""

from __future__ import annotations

from typing import Any

import numpy as np

from menv.policy_spec import PolicySpec
from menv.serving.client.policy_client import PolicyClient
from menv.serving.policy_server import PolicyServerInput
from tests.serving.served import Served, served, settled
from tests.serving.test_policy_client_policies import TEAMS

SEEN = np.zeros(10, np.float32)


def red(agent_id: str, **kwargs: Any) -> str:
    return "red"


def blue(agent_id: str, **kwargs: Any) -> str:
    return "blue"


def lstm(size: int) -> PolicySpec:
    return PolicySpec(config={"model": {"use_lstm": True, "lstm_cell_size": size, "fcnet_hiddens": [4]}})


def client_of(one: Served) -> PolicyClient:
    return PolicyClient(f"tcp://127.0.0.1:{one.envs.addresses[0][1]}", update_interval=None)


def step(client: PolicyClient, name: str, times: int = 1, reward: float = 1.0) -> None:
    for _ in range(times):
        client.get_action(name, {"red_0": SEEN})
        client.log_returns(name, {"red_0": reward})


def test_who_greeted_when_there_was_one_policy_plays_with_those_of_now_after_new_weights() -> None:
    alone = {"policies": ["red"], "policy_mapping_fn": red}
    with served(kind=PolicyServerInput, **{**TEAMS, "multiagent": alone}) as one:
        with one.sampling():
            client = client_of(one)
            before = client.start_episode()
            step(client, before, 3)
        one.algo.add_policy("blue", policy_mapping_fn=blue)
        one.algo.remove_policy("red")
        with one.sampling():
            with client:
                client.update_policy_weights()
                step(client, before, 2)
                client.end_episode(before, {})
                after = client.start_episode()
                step(client, after, 5, 2.0)
                client.end_episode(after, {})
            assert settled(one)
        one.paid()
        assert one.column("rewards", "blue").tolist() == [2.0] * 5


def test_what_a_removed_policy_remembered_is_no_reason_to_refuse_an_episode_that_runs() -> None:
    policies = {"policies": {"red": lstm(8), "blue": lstm(4)}, "policy_mapping_fn": blue}
    with served(kind=PolicyServerInput, **{**TEAMS, "multiagent": policies}) as one:
        with one.sampling():
            client = client_of(one)
            before = client.start_episode()
            step(client, before, 3)
        one.algo.remove_policy("blue", policy_mapping_fn=red)
        with one.sampling():
            with client:
                client.end_episode(before, {})
            assert settled(one)
        assert one.refused == 0
