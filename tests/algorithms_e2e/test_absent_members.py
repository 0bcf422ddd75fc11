"""QMIX and VDN with members that leave before their group ends: what the networks see of them, and what is learned."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from menv import PolicySpec
from menv.algorithms import PPO, QMIX
from menv.algorithms.qmix.learner import TorchGroup
from menv.algorithms.qmix.network import GroupSpec, group_layout
from tests.inference.lively import lively_weights
from tests.worlds import Several

# Other processes would import torch with this file.
pytestmark = pytest.mark.usefixtures("sent_whole")
STEPS = 12


class Guards(Several):
    """Two guards of a treasure: "a" may take 1.0 once and is gone; the team gets 0.5 a step while "a" stands.

    To stay always is worth 6.0, to take it at the last step 6.5, to take it at once 1.0.
    """

    length = STEPS
    left: int | None = None

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.observation_space = gym.spaces.Discrete(STEPS + 1)
        if self.config.get("masked"):
            parts = {"obs": self.observation_space, "action_mask": gym.spaces.MultiBinary(2)}
            self.observation_space = gym.spaces.Dict(parts)

    def see(self, agent: str) -> Any:
        return {"obs": self.at, "action_mask": np.ones(2, np.int8)} if self.config.get("masked") else self.at

    def shown(self) -> Any:
        self.left = self.left if self.at else None
        return "ab" if self.left in (None, self.at) else "b"

    def dead(self, actions: Any) -> Any:
        return "a" if self.left == self.at else ""

    def pay(self, actions: Any) -> Any:
        self.left = self.at if actions.get("a") == 1 else self.left
        paid = {"a": float(self.left == self.at)} if "a" in actions else {}
        return {**paid, "b": 0.5 * (self.left is None)}


def guards(context: Any) -> Any:
    return Guards(context).with_agent_groups({"team": ["a", "b"]})


PLACES: dict[str, dict[str, Any]] = {
    "here": {},
    "rollout worker": {"num_workers": 1},
    "remote environments": {"remote_worker_envs": True},
    "masks": {"env_config": {"masked": True}},
}


@pytest.mark.slow_unless("here", "masks")
@pytest.mark.parametrize("place", PLACES)
def test_rows_from_every_source_have_the_members_that_are_alive(place: str) -> None:
    config = {"num_envs_per_worker": 2, "rollout_fragment_length": 60, "seed": 0, **PLACES[place]}
    with QMIX(env=guards, config=config) as algo:
        batch = algo.sample()["default_policy"]
    marks = batch["obs"][:, -2:]
    # A guard that takes its coin by chance of a half is gone soon; "b" always stands.
    assert set(np.unique(marks[:, 0])) == {-1.0, 1.0}
    assert (marks[:, 1] == 1.0).all()
    first = batch["t"] == 0
    assert (marks[first] == 1.0).all()
    if place == "masks":
        gone = marks[:, 0] < 0.0
        assert (batch["action_mask"][gone][:, :2] == [True, False]).all()
        assert (batch["actions"][gone, 0] == 0).all()
        assert batch["action_mask"][~gone].all()


def spec_of_guards(mixer: Any = "qmix", **settings: Any) -> GroupSpec:
    env = guards({})
    layout = group_layout(env.observation_spaces["team"], env.action_spaces["team"])
    return GroupSpec(2 * (STEPS + 1) + 2, layout, (16,), mixer=mixer, embed_dim=4, marked=True, **settings)


@pytest.mark.parametrize("dueling", [False, True])
def test_an_absent_member_is_worth_nothing_whatever_its_columns_hold(dueling: bool) -> None:
    spec = spec_of_guards(dueling=dueling)
    weights = lively_weights(spec)
    network = TorchGroup(spec, {name: torch.from_numpy(value) for name, value in weights.items()})
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((64, spec.obs_size)).astype(np.float32)
    obs[:, -2:] = [-1.0, 1.0]
    other = obs.copy()
    other[:, : STEPS + 1] = 7.0
    both = [network.by_member(torch.from_numpy(rows), None) for rows in (obs, other)]
    assert (both[0][:, 0] == 0.0).all()
    assert (both[0][:, 1] != 0.0).all()
    assert torch.equal(*both)
    # The mixing network sees zeros of it, and that it is not there.
    taken = both[0][..., 0]
    mixed = [network.mixed(taken, torch.from_numpy(rows)) for rows in (obs, other)]
    assert torch.equal(*mixed)
    blank = obs.copy()
    blank[:, : STEPS + 1], blank[:, -2] = 0.0, 1.0
    assert not torch.equal(mixed[0], network.mixed(taken, torch.from_numpy(blank)))
    # As after a filter that has subtracted the mean and divided by the deviation.
    filtered = obs.copy()
    filtered[:, -2:] = [-3.0, 0.0]
    assert torch.equal(both[0], network.by_member(torch.from_numpy(filtered), None))


def test_a_central_critic_sees_a_group_that_qmix_trains() -> None:
    class Watched(Guards):
        """A third agent looks on."""

        possible_agents: Any = tuple("abc")

        def shown(self) -> Any:
            return super().shown() + "c"

        def pay(self, actions: Any) -> Any:
            return {**super().pay(actions), "c": 1.0}

    multiagent = {
        "policies": {"c": PolicySpec(), "team": PolicySpec(algorithm="QMIX")},
        "policy_mapping_fn": lambda agent_id, *args, **kwargs: agent_id,
    }
    config = {"critic_obs": "all_agents", "multiagent": multiagent, "train_batch_size": 200, "seed": 0}
    with PPO(env=lambda c: Watched(c).with_agent_groups({"team": ["a", "b"]}), config=config) as algo:
        assert np.isfinite(algo.train()["info"]["c"]["vf_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("mixer", "masked"), [("vdn", False), ("qmix", False), ("qmix", True)])
def test_a_guard_whose_team_is_paid_while_it_stands_stays(mixer: str, masked: bool, seed: int) -> None:
    config = {
        "mixer": mixer, "seed": seed, "num_envs_per_worker": 4, "evaluation_duration": 5,
        "exploration_config": {"epsilon_timesteps": 6000}, "evaluation_config": {"explore": False},
        "env_config": {"masked": masked},
    }  # fmt: skip
    with QMIX(env=guards, config=config) as algo:
        steps = 0
        while steps < 12_000:
            steps = algo.train()["timesteps_total"]
        assert algo.evaluate()["evaluation"]["episode_reward_mean"] >= 6.0
