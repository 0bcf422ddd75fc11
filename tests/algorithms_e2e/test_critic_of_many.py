"""What a central critic sees of agents that die, pause and return, whoever answers for them: against a plain search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from menv import Episode, MultiAgentBatch, PolicySpec, RandomPolicy, SampleBatch
from menv.algorithms import PPO
from tests.algorithms_e2e.comings import Comings

AGENTS = ("a0", "a1", "a2", "a3")
BY_AGENT = {"a0": "critic", "a1": "q", "a2": "random", "a3": "critic"}
FLAT: dict[str, Any] = {"fcnet_hiddens": [8]}
CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 3,
    "train_batch_size": 120,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 1,
    "seed": 1,
    "model": FLAT,
    "critic_obs": "all_agents",
    "multiagent": {
        "policies": {
            "critic": None,
            "q": PolicySpec(algorithm="DQN", config={"num_steps_sampled_before_learning_starts": 10}),
            "random": PolicySpec(policy_class=RandomPolicy),
        },
        "policy_mapping_fn": lambda agent_id, **kwargs: BY_AGENT[agent_id],
    },
}
Sight = tuple[int, int, npt.NDArray[Any]]
"""An env step, the one of the agent's next observation or end, and what it saw."""


class Remembering(PPO):
    """Keeps the episodes of the last fragment."""

    def sample(self) -> MultiAgentBatch:
        finish = self._sampler.finish

        def kept(batch: MultiAgentBatch, hooks: Any = None) -> None:
            self.seen = dict(self._sampler.episodes)
            finish(batch, hooks)

        self._sampler.finish = kept  # type: ignore[method-assign]
        batch = super().sample()
        self._sampler.finish = finish  # type: ignore[method-assign]
        return batch


def sights(
    batch: MultiAgentBatch, episodes: Mapping[int, Episode], found: dict[tuple[int, Any], list[Sight]]
) -> None:
    """Add what there was to see of each agent of each episode."""
    for own in batch.policy_batches.values():
        for row in range(own.count):
            eps_id, number = int(own["eps_id"][row]), int(own["agent_index"][row])
            dates = int(own["env_t"][row]), int(own["next_env_t"][row])
            sight = (*dates, own["obs"][row])
            found.setdefault((eps_id, episodes[eps_id].get_agents()[number]), []).append(sight)


def numbers(obs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.asarray(obs / 255.0 if obs.dtype == np.uint8 else obs, np.float32)


@pytest.mark.slow_unless(
    "False-{}-numbers", "True-{}-choice", "False-{'batch*-image", "True-{'roll*-numbers", "*{'model*-choice"
)
@pytest.mark.each_value
@pytest.mark.parametrize("obs", ["numbers", "image", "choice"])
@pytest.mark.parametrize("changes", [
    {},
    {"batch_mode": "complete_episodes"},
    {"rollout_fragment_length": 7, "inference": "torch"},
    {"model": {**FLAT, "use_lstm": True}},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("mask", [False, True])
def test_each_row_has_the_agents_of_its_env_step_and_their_observations(
    obs: str, changes: dict[str, Any], mask: bool
) -> None:
    config = {**CONFIG, **changes, "env_config": {"obs": obs, "mask": mask, "agents": len(AGENTS)}}
    with Remembering(env=Comings, config=config) as algorithm:
        seen: dict[tuple[int, Any], list[Sight]] = {}
        asked: list[tuple[int, int, Any, SampleBatch]] = []
        for number in range(6):
            batch = algorithm.sample()
            sights(batch, algorithm.seen, seen)
            own = batch["critic"]
            # What agents that wait have seen is known later.
            for row in range(own.count) if number < 3 else ():
                eps_id = int(own["eps_id"][row])
                me = algorithm.seen[eps_id].get_agents()[int(own["agent_index"][row])]
                asked.append((row, eps_id, me, own))
        compared = 0
        for row, eps_id, me, own in asked:
            date = int(own["env_t"][row])
            parts = [numbers(own["obs"][row])]
            for other in AGENTS:
                if other == me:
                    continue
                cell = np.zeros(len(parts[0]) + 1, np.float32)
                for since, until, shown in seen.get((eps_id, other), ()):
                    if since <= date < until:
                        cell[:] = [*numbers(shown), 1.0]
                parts.append(cell)
            np.testing.assert_allclose(own["critic_obs"][row], np.concatenate(parts), atol=1e-6)
            compared += 1
        assert compared > 50
        before = algorithm.get_weights()
        algorithm.train()
        after = algorithm.get_weights()
        algorithm.evaluate()
    for policy_id in ("critic", "q"):
        assert all((before[policy_id][name] != after[policy_id][name]).any() for name in before[policy_id])
