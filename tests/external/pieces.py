"""Episodes that are written down while they are sampled, to be handed in again as pieces that were played elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from menv.base_env import ExternalSteps, ExternalTrajectory
from tests.external.told import Told, training
from tests.external.walk import Walk

AGENT = "agent0"


@dataclass
class Noted:
    """An episode of one agent: n + 1 observations, n actions as the environment got them, n rewards."""

    obs: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False

    def piece(self, start: int, stop: int, **known: Any) -> ExternalTrajectory:
        """Return the steps from `start` to before `stop`; `known` columns of the whole episode go along."""
        last = stop == len(self.actions)
        flags: dict[str, Any] = {
            "terminated": last and self.terminated,
            "truncated": last and not self.terminated,
        }
        columns: dict[str, Any] = {
            name: value[start:stop] if isinstance(value, np.ndarray) else value
            for name, value in known.items()
        }
        moves = ExternalSteps(
            self.obs[start : stop + 1], columns.pop("actions", self.actions[start:stop]),
            np.array(self.rewards[start:stop], np.float64), **flags, **columns,
        )  # fmt: skip
        return ExternalTrajectory({AGENT: moves}, stop - start, **flags)

    def pieces(self, size: int | None, **known: Any) -> list[ExternalTrajectory]:
        """Return pieces of `size` steps, or one."""
        steps = len(self.actions)
        bounds = [*range(0, steps, size or steps), steps]
        return [self.piece(start, stop, **known) for start, stop in pairwise(bounds)]


def sampled(algorithm: Any, walk: Walk, fragments: int = 2, **config: Any) -> tuple[list[Any], list[Noted]]:
    """Sample whole episodes of a walk that calls for its actions; return the batches and what was played."""
    noted: list[Noted] = []

    def play(env: Any) -> None:
        while True:
            episode, (seen, _) = env.start_episode(), walk.reset()
            now, over = Noted(), False
            now.obs.append(seen)
            while not over:
                action = env.get_action(episode, seen)
                seen, reward, terminated, truncated, _ = walk.step(action)
                env.log_returns(episode, reward)
                now.obs.append(seen)
                now.actions.append(action)
                now.rewards.append(reward)
                over = terminated or truncated
            now.terminated = terminated
            noted.append(now)
            env.end_episode(episode, seen, truncated=truncated)

    env = told(walk, play)
    with training(env, algorithm, batch_mode="complete_episodes", **config) as algo:
        batches = [algo.sample()["default_policy"] for _ in range(fragments)]
    return batches, noted[: sum(len(batch.segments.lengths) for batch in batches)]


def told(walk: Walk, play: Any = None) -> Told:
    """Return an external environment with the spaces of a walk."""
    return Told(play, observation_space=walk.observation_space, action_space=walk.action_space)


def by_episode(batches: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the columns of each episode, ordered by what happened, from batches that may cut them."""
    found: dict[int, list[Any]] = {}
    for batch in batches:
        for piece in batch.split_by_episode():
            found.setdefault(int(piece["eps_id"][0]), []).append(piece)
    episodes = [
        {name: np.concatenate([piece[name] for piece in pieces]) for name in names}
        for pieces in found.values()
    ]
    return sorted(episodes, key=lambda columns: (columns["obs"].tobytes(), columns["actions"].tobytes()))


def own_actions(batches: Sequence[Any], noted: Sequence[Noted]) -> list[Any]:
    """Return the actions of each episode in the network's own form, of batches of whole episodes in order."""
    pieces = [piece for batch in batches for piece in batch.split_by_episode()]
    assert [piece.count for piece in pieces] == [len(one.actions) for one in noted]
    return [piece["actions"] for piece in pieces]
