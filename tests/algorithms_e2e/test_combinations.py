"""Settings that are each tested by themselves, in pairs and threes: rows, states and losses still fit together."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from menv import DefaultCallbacks, SampleBatch
from menv.algorithms import DQN, PPO, Algorithm
from tests.algorithms_e2e.comings import Comings
from tests.inside import policy_set

FLAT: dict[str, Any] = {"fcnet_hiddens": [8]}
LSTM: dict[str, Any] = {**FLAT, "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}
GRU: dict[str, Any] = {**LSTM, "use_lstm": False, "use_gru": True}
SAMPLING: dict[str, Any] = {"num_envs_per_worker": 3, "seed": 1, "evaluation_duration": 3}
ON_POLICY: dict[str, Any] = {
    **SAMPLING,
    "train_batch_size": 120,
    "num_sgd_iter": 1,
    # One minibatch, so that the first update begins with the policy that acted.
    "sgd_minibatch_size": 100_000,
    "lr": 1e-2,
    "model": LSTM,
}
OFF_POLICY: dict[str, Any] = {
    **SAMPLING,
    "train_batch_size": 32,
    "training_intensity": 4,
    "num_steps_sampled_before_learning_starts": 10,
    "min_sample_timesteps_per_iteration": 100,
    "rollout_fragment_length": 10,
    "model": LSTM,
}


class Grid(nn.Module):
    """A user's module, without a state."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        shown = obs_space["obs"] if isinstance(obs_space, gym.spaces.Dict) else obs_space
        self.body = nn.Linear(int(np.prod(shown.shape or ())), 8)
        self.policy, self.value = nn.Linear(8, num_outputs), nn.Linear(8, 1)

    def features(self, obs: Any, axes: int) -> Tensor:
        shown = obs["obs"] if isinstance(obs, dict) else obs
        return torch.tanh(self.body(shown.flatten(axes) / 255.0))

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        features = self.features(obs, 1)
        return self.policy(features), self.value(features)[:, 0]


class Recurrent(Grid):
    """Likewise, with one; a life does not begin with zeros."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__(obs_space, num_outputs)
        self.cell = nn.GRU(8, 8, batch_first=True)

    def get_initial_state(self) -> list[Tensor]:
        return [torch.ones(8)]

    def forward(self, obs: Any, state: Any = None) -> Any:
        features, after = self.cell(self.features(obs, 2), state[0][None].contiguous())
        return self.policy(features), self.value(features)[..., 0], [after[0]]


class Watching(DefaultCallbacks):
    def on_postprocess_trajectory(self, **kwargs: Any) -> None:
        assert kwargs["postprocessed_batch"].count

    def on_episode_end(self, **kwargs: Any) -> None:
        kwargs["episode"].custom_metrics["steps"] = float(kwargs["episode"].length)


def first_or_not(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return "first" if agent_id == "a0" else "others"


TWO: dict[str, Any] = {"policies": ["first", "others"], "policy_mapping_fn": first_or_not}


def check_memory(algorithm: Algorithm, policy_id: str, batch: SampleBatch) -> None:
    """Assert that each row's state is what the network makes of the row before, and the answer that of the state."""
    built, index = policy_set(algorithm).learners._network_of(policy_id)
    before = np.concatenate([batch[name] for name in batch if name.startswith("state_in_")], 1)
    backend, mask = built.networks.backend, batch.get("action_mask")
    assert not before[batch["t"] == 0].any()
    after = backend.decide(batch["obs"], mask, None, index, before).state
    assert after is not None
    goes_on = np.ones(batch.count, np.bool_)
    goes_on[batch.segments.ends - 1] = False
    rows = np.flatnonzero(goes_on)
    np.testing.assert_allclose(after[rows], before[rows + 1], atol=1e-5)
    if "action_logp" in batch:
        found = backend.evaluate(index, batch["obs"], mask, batch["actions"], before)
        np.testing.assert_allclose(found.logp, batch["action_logp"], atol=1e-4)


def check_learning(algorithm: Algorithm) -> None:
    """Assert that an update begins with the policy that acted, moves every weight, and that evaluations go through."""
    before = algorithm.get_weights()
    result = algorithm.train()
    # The first update of values of 0 moves their last layer alone.
    algorithm.train()
    after = algorithm.get_weights()
    for policy_id in before:
        # The divergence is told of the last epoch, here the first: of the learner's network from what acted.
        assert abs(result["info"][policy_id]["kl"]) < 1e-5
        assert [
            name for name, value in before[policy_id].items() if (value == after[policy_id][name]).all()
        ] == []
    assert algorithm.evaluate()["evaluation"]["episodes_this_iter"] == 3


def without_addresses(value: Any) -> str:
    """Return a parameter's name that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


ACTS = [
    {"act": act, "mask": mask}
    for act in ("choice", "tuple", "dict", "box", "boxes")
    for mask in (False, True)
    if not (mask and act.startswith("box"))
]


@pytest.mark.slow_unless(
    "{'act': 'choice', 'mask': False}-onnx",
    "{'act': 'dict', 'mask': True}-onnx",
    "{'act': 'boxes'*-onnx",
    "{'obs': 'image', 'mask': True}-onnx",
)
@pytest.mark.parametrize("inference", ["onnx", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("world", [*ACTS, {"obs": "image", "mask": True}, {"obs": "choice"}], ids=str)
def test_recurrent_policies_work_with_every_kind_of_action_and_observation(
    world: dict[str, Any], inference: str
) -> None:
    with PPO(env=Comings, config={**ON_POLICY, "env_config": world, "inference": inference}) as algorithm:
        for _ in range(2):
            check_memory(algorithm, "default_policy", algorithm.sample()["default_policy"])
        check_learning(algorithm)


@pytest.mark.parametrize("changes", [
    {"batch_mode": "complete_episodes"},
    {"batch_mode": "complete_episodes", "multiagent": {"count_steps_by": "agent_steps"}},
    {"rollout_fragment_length": 1},
    {"callbacks": Watching, "rollout_fragment_length": 5},
    {"callbacks": [Watching, Watching()], "clip_rewards": True},
    {"model": {**GRU, "vf_share_layers": True}, "env_config": {"obs": "floats"}},
    {"critic_obs": "all_agents", "env_config": {"obs": "image", "mask": True, "act": "dict"}},
    {"critic_obs": "all_agents", "env_config": {"act": "boxes"}, "batch_mode": "complete_episodes"},
    {"critic_obs": lambda batch, others, episode: batch["obs"][:, :2], "critic_obs_size": 2},
], ids=without_addresses)  # fmt: skip
def test_recurrent_policies_work_with_every_way_to_sample_and_to_compute_values(
    changes: dict[str, Any],
) -> None:
    with PPO(env=Comings, config={**ON_POLICY, **changes}) as algorithm:
        for _ in range(2):
            check_memory(algorithm, "default_policy", algorithm.sample()["default_policy"])
        check_learning(algorithm)


@pytest.mark.parametrize("changes", [
    {"dueling": True, "n_step": 3, "replay_buffer_config": {"prioritized_replay": True}},
    {"dueling": False, "n_step": 6, "env_config": {"mask": True}, "inference": "torch"},
    {"env_config": {"mask": True, "obs": "image"}, "batch_mode": "complete_episodes"},
    {"model": GRU, "clip_rewards": 0.5, "multiagent": {"count_steps_by": "agent_steps"}},
    {"model": {**GRU, "shared_layers": "all"}, "env_config": {"obs": "floats"}, "rollout_fragment_length": "auto"},
], ids=str)  # fmt: skip
def test_recurrent_q_values_work_with_every_setting(changes: dict[str, Any]) -> None:
    with DQN(env=Comings, config={**OFF_POLICY, **changes}) as algorithm:
        for _ in range(2):
            check_memory(algorithm, "default_policy", algorithm.sample()["default_policy"])
        before = algorithm.get_weights()["default_policy"]
        algorithm.train()
        after = algorithm.get_weights()["default_policy"]
        assert [name for name in before if (before[name] == after[name]).all()] == []
        algorithm.evaluate()


@pytest.mark.each_value
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("changes", [{}, {"callbacks": Watching}, {"critic_obs": "all_agents"}], ids=str)
def test_recurrent_policies_work_with_every_autoreset_mode(
    mode: AutoresetMode, changes: dict[str, Any]
) -> None:
    def short() -> gym.Env[Any, Any]:
        return gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, 7)

    env = SyncVectorEnv([short] * 3, autoreset_mode=mode)
    with PPO(env=lambda context: env, config={**ON_POLICY, **changes}) as algorithm:
        for _ in range(3):
            batch = algorithm.sample()["default_policy"]
            assert batch["truncateds"].any()
            check_memory(algorithm, "default_policy", batch)
        before = algorithm.get_weights()["default_policy"]
        for _ in range(2):
            algorithm.train()
        after = algorithm.get_weights()["default_policy"]
        assert all((before[name] != after[name]).any() for name in before)


@pytest.mark.slow_unless("{'act': 'choice'*False*-Recurrent", "{'obs': 'image'*tuple*-Grid")
@pytest.mark.parametrize("module", [Grid, Recurrent])
@pytest.mark.parametrize("world", [*ACTS, {"obs": "image", "mask": True, "act": "tuple"}], ids=str)
def test_a_custom_module_works_with_every_action_space_and_with_added_policies(
    module: Any, world: dict[str, Any]
) -> None:
    model = {"custom_model": module, "max_seq_len": 4}
    config = {**ON_POLICY, "model": model, "env_config": world, "multiagent": TWO}
    with PPO(env=Comings, config=config) as algorithm:
        if module is Recurrent:
            for policy_id, own in algorithm.sample().policy_batches.items():
                check_memory(algorithm, policy_id, own)
        check_learning(algorithm)
        algorithm.add_policy("new", policy_mapping_fn=lambda agent_id: "new")
        copied = algorithm.get_weights("first")["first"]
        algorithm.set_weights({"new": copied})
        for _ in range(2):
            result = algorithm.train()
        learned = algorithm.get_weights(["new"])["new"]
        assert "new" in result["info"]
        assert all((learned[name] != copied[name]).any() for name in copied)


@pytest.mark.slow_unless("numbers-*lstm': True*", "image-{'fcnet_hiddens': *]}")
@pytest.mark.parametrize("model", [FLAT, LSTM, {**GRU, "vf_share_layers": True}], ids=str)
@pytest.mark.parametrize("obs", ["numbers", "image"])
def test_all_layers_but_the_heads_are_shared_whatever_they_are(model: dict[str, Any], obs: str) -> None:
    config = {
        **ON_POLICY,
        "model": {**model, "shared_layers": "all"},
        "env_config": {"obs": obs, "mask": True},
    }
    with PPO(env=Comings, config={**config, "multiagent": TWO}) as algorithm:

        def check(one: str, other: str) -> None:
            weights = algorithm.get_weights()
            different = [
                name for name, value in weights[one].items() if (value != weights[other][name]).any()
            ]
            assert {name.split(".")[1] for name in different} == {"out"}

        first = algorithm.get_weights()["first"]
        for _ in range(2):
            algorithm.train()
        check("first", "others")
        after = algorithm.get_weights()["first"]
        assert all((after[name] != first[name]).any() for name in first)
        algorithm.add_policy(
            "new", policy_mapping_fn=lambda agent_id: "new" if agent_id == "a1" else "others"
        )
        algorithm.remove_policy("first")
        for _ in range(2):
            algorithm.train()
        check("new", "others")
        algorithm.evaluate()
