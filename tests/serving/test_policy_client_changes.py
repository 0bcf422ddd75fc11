"""Policy clients of a server whose policies come and go, and of one that takes the place of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv import PolicySpec
from menv.serving.client.policy_client import PolicyClient
from menv.serving.policy_server import PolicyServerInput
from tests.serving.courses import Course, play
from tests.serving.served import served, settled
from tests.serving.test_policy_client_policies import TEAMS


def test_an_episode_that_a_local_client_plays_keeps_a_policy_whose_name_another_network_has_by_then() -> None:
    seen = {"red_0": np.zeros(10, np.float32), "blue_0": np.zeros(10, np.float32)}
    everybody: Any = {"policy_mapping_fn": lambda agent_id, **kwargs: "red"}
    memory = PolicySpec(config={"model": {"fcnet_hiddens": [4], "use_lstm": True}})
    with served(kind=PolicyServerInput, **TEAMS) as one:
        with one.sampling():
            client = PolicyClient(f"tcp://127.0.0.1:{one.envs.addresses[0][1]}", update_interval=None)
            episode = client.start_episode()
            client.get_action(episode, seen)
        one.algo.remove_policy("blue", **everybody)
        one.algo.add_policy("blue", memory, policy_mapping_fn=TEAMS["multiagent"]["policy_mapping_fn"])
        with one.sampling(), client:
            client.update_policy_weights()
            for name in (episode, client.start_episode()):
                client.get_action(name, seen)
                client.log_returns(name, {"red_0": 1.0, "blue_0": 1.0})
                client.end_episode(name, seen)
        assert settled(one)
        one.paid()
        # What the one of before did is off policy: nobody learns from it.
        assert sorted(one.column("rewards", "blue").tolist()) == [0.0, 1.0, 1.0]
        assert one.algo._sampler.external_writer.stale_rows == 2


@pytest.mark.parametrize("observation_filter", ["NoFilter", "MeanStdFilter"])
def test_a_local_client_takes_the_weights_of_another_server_that_has_the_same_number(
    observation_filter: str,
) -> None:
    first: dict[str, Any] = {"observation_filter": observation_filter, "explore": False}
    with Course(first) as course:
        port = course.port
        client = PolicyClient(course.address, "local", update_interval=None, timeout=20)
        play(client, [1.0] * 8)
        client.update_policy_weights()
        number = client.weights_seq_no
    with client, Course({**first, "seed": 4}, port=port) as course:
        client.update_policy_weights()
        assert client.weights_seq_no == number == 1
        assert client._actor is not None
        have = client._actor._policies["default_policy"].policy.get_weights()
        wanted = course.algo.get_policy().get_weights()
        assert have.keys() == wanted.keys()
        assert all(np.array_equal(have[name], wanted[name]) for name in wanted)
