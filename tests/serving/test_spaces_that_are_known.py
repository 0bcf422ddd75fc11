"""Where a server knows from what its clients observe and do: the config, a stub, or the policies."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import ConfigError, MultiAgentEnv, PolicySpec
from menv.serving import PolicyClient
from tests.serving.courses import CONFIG, OBSERVATIONS, Course

WIDE = gym.spaces.Box(-1.0, 1.0, (5,), np.float32)
TWO = gym.spaces.Discrete(2)


def told_by(policies: dict[str, Any]) -> dict[str, Any]:
    mapping = {"policies": policies, "policy_mapping_fn": lambda agent_id, **kwargs: next(iter(policies))}
    return {"observation_space": None, "action_space": None, "multiagent": mapping}


@pytest.mark.parametrize("mode", ["remote", "local"])
@pytest.mark.parametrize("specs", [(None, OBSERVATIONS, TWO, {}), PolicySpec(None, OBSERVATIONS, TWO)])
def test_clients_play_in_the_spaces_that_the_policies_declare(specs: Any, mode: Any) -> None:
    assert CONFIG["observation_space"] == OBSERVATIONS
    with Course(told_by({"one": specs, "other": specs})) as course:
        client = PolicyClient(course.address, mode)
        episode = client.start_episode()
        assert client.get_action(episode, OBSERVATIONS.sample()) in (0, 1)
        client.log_returns(episode, 1.0)
        client.end_episode(episode, OBSERVATIONS.sample())
        client.close()


@pytest.mark.parametrize(
    "policies", [{"one": (None, OBSERVATIONS, TWO, {}), "other": (None, WIDE, TWO, {})}, {"one": None}]
)
def test_a_server_whose_spaces_nobody_knows_is_refused(policies: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^PolicyServerInput: no observation space is known.*give env=\.\.\."
    ):
        Course(told_by(policies))


@pytest.mark.parametrize(
    ("names", "told"), [((0, 1), "agent 0 is a int"), (("ann", None), "agent None is a NoneType")]
)
def test_a_stub_whose_agents_no_message_can_name_is_refused(names: Any, told: str) -> None:
    class Stub(MultiAgentEnv):
        def __init__(self, config: Any = None) -> None:
            super().__init__()
            self.possible_agents = list(names)
            self.observation_spaces, self.action_spaces = (
                dict.fromkeys(names, space) for space in (OBSERVATIONS, TWO)
            )

    with pytest.raises(
        ConfigError, match=rf"^PolicyServerInput: {told}, expected texts.*; have the stub"
    ) as caught:
        Course({"env": Stub, "observation_space": None, "action_space": None})
    assert len(str(caught.value).splitlines()) == 1
