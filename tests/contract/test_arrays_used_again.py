"""The arrays of a table may be written into once the next is made: what policies and callbacks keep are copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from menv import DefaultCallbacks, Join, Policy, PolicySpec, Ready
from menv.algorithms import PPO
from tests.contract.test_tables import SEATS, Pairs


class Alternating(Pairs):
    """One world's rows a poll; all are shown in one array, which is used again."""

    lockstep = False

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.shown, self.due = np.zeros((3, 1), np.float32), [0, 1]

    def poll(self, timeout: float | None = None) -> Ready:
        self.polls += 1
        world = self.due.pop(0)
        self.env_steps[world] += self.polls > 2
        self.shown[:] = 100 * world + self.env_steps[world]
        joined = [
            Join(s, *SEATS[s], world) for s in range(3 * world, 3 * world + 3) if not self.env_steps[world]
        ]
        return Ready(np.arange(3) + 3 * world, self.shown, np.zeros(3), self.env_steps, joined)

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.due += sorted(set((np.asarray(slots) // 3).tolist()))


def test_policies_and_callbacks_are_shown_what_agents_saw_in_an_array_that_is_used_again() -> None:
    decided: list[float] = []
    kept: list[tuple[Any, int]] = []

    class Own(Policy):
        def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
            decided.extend(float(one[0]) for one in obs_batch)
            return [0] * len(obs_batch), [], {}

    class Watching(DefaultCallbacks):
        def on_episode_step(self, *, worker: Any, **kwargs: Any) -> None:
            for episode in worker.running.values():
                seen = episode.last_observation_for("a")
                kept.extend([(episode.env_id, int(seen[0]) // 100)] if seen is not None else [])

    spec = {"policies": {"own": PolicySpec(policy_class=Own)}, "policies_to_train": []}
    multiagent = {**spec, "policy_mapping_fn": lambda *args, **kwargs: "own"}
    config = {"rollout_fragment_length": 3, "train_batch_size": 6, "seed": 0, "multiagent": multiagent}
    with PPO(env=Alternating, config={**config, "callbacks": Watching}) as algo:
        for _ in range(3):
            algo.sample()
    assert len(decided) == 3 * len(set(decided)) == 2 * 3 * 9
    assert kept
    assert all(world == shown for world, shown in kept)
