"""Environments of the old gym API whose agents have a place in lists, in `MultiAgentGym(LegacyGym(env))`."""

from __future__ import annotations

from typing import Any

import numpy as np

from menv.algorithms import PPO
from menv.base_env import ALL
from menv.wrappers import LegacyGym, MultiAgentGym
from tests.wrappers.test_multi_agent_gym import Foragers


class OldForagers:
    """Foragers that return four values, in lists, and have lists of spaces; a time limit ends the last of them."""

    def __init__(self) -> None:
        self.new = Foragers()
        spaces: list[Any] = [self.new.observation_space, self.new.action_space]
        self.observation_space, self.action_space = map(list, spaces)

    def reset(self) -> Any:
        return list(self.new.reset()[0])

    def step(self, action: Any) -> Any:
        obs, rewards, ended, _, _ = self.new.step(action)
        return list(obs), rewards, ended, {"TimeLimit.truncated": all(ended)}


def test_lists_of_one_for_each_agent_are_those_of_the_present_form() -> None:
    old, new = MultiAgentGym(LegacyGym(OldForagers())), MultiAgentGym(Foragers())
    assert old.observation_spaces == new.observation_spaces
    assert old.action_spaces == new.action_spaces
    assert old.reset()[0] == new.reset()[0]
    over = False
    while not over:
        answers = dict.fromkeys(new.agents, np.int64(1))
        obs, rewards, terminateds, truncateds, _ = old.step(answers)
        wanted = new.step(answers)
        assert (obs, rewards) == wanted[:2]
        assert old.agents == new.agents
        over = wanted[2][ALL]
        assert (terminateds[ALL], truncateds[ALL]) == (False, over)
    assert old.env.env.new.time == 4


def test_they_train_as_those_of_the_present_form() -> None:
    def batch(env: Any) -> Any:
        with PPO(
            env=lambda context: MultiAgentGym(env()), config={"train_batch_size": 64, "seed": 1}
        ) as algo:
            return algo.sample()["default_policy"]

    old, new = batch(lambda: LegacyGym(OldForagers())), batch(Foragers)
    for name in ("obs", "actions", "rewards", "eps_id"):
        np.testing.assert_array_equal(old[name], new[name], err_msg=name)
    assert old["truncateds"].sum() > 0
    assert new["truncateds"].sum() == 0
