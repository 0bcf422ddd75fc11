"""Two players of `RockPaperScissors` who follow a rule and learn nothing.

Examples and tests name them with `PolicySpec(policy_class=...)` as opponents. They see the other one's last hand,
as everybody does, and know nothing of who plays against them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from menv import draws
from menv.drawing_policy import DrawingPolicy
from menv.envs.rock_paper_scissors import NOTHING
from menv.errors import ConfigError
from menv.policy import RowDraws

_HANDS = 3


class AlwaysSame(DrawingPolicy):
    """Draws one hand for each episode and shows it in every round.

    Config: `"hand"`, 0, 1 or 2, shows that one in all episodes; so does a call without episodes, with a hand
    drawn from `"seed"`.
    """

    def answer(
        self, obs_batch: Sequence[Any], row_draws: RowDraws, explore: bool | None, episodes: Sequence[Any]
    ) -> Sequence[Any]:
        """Return R hands that depend on who plays in which episode, and on nothing that happens there.

        Raises:
            ConfigError: `config["hand"]` is no hand.
        """
        hand = self.config.get("hand")
        if hand is not None:
            if hand not in range(_HANDS):
                raise ConfigError(
                    f"AlwaysSame: hand is {hand!r}, expected 0, 1, 2 or None; change the policy's config"
                )
            return [hand] * len(obs_batch)
        if not episodes:
            return [draws.key(int(self.config.get("seed", 0)), 0) % _HANDS] * len(obs_batch)
        # An episode's hand is drawn anew in each of its rounds from numbers that stay the same, so that there
        # is nothing to remember and nothing to forget.
        numbers = np.array([episode.episode_id for episode in episodes], np.int64)
        return _hands(RowDraws(row_draws.keys, numbers)).tolist()  # type: ignore[no-any-return]


class BeatLastMove(DrawingPolicy):
    """Shows the hand that beats the one that the other player showed last; the first one is drawn."""

    def answer(
        self, obs_batch: Sequence[Any], row_draws: RowDraws, explore: bool | None, episodes: Sequence[Any]
    ) -> Sequence[Any]:
        """Return R hands that depend on the observations and, in a first round, on `row_draws` alone."""
        seen = np.asarray(obs_batch).reshape(-1)
        hands = np.where(seen == NOTHING, _hands(row_draws), (seen + 1) % _HANDS)
        return hands.tolist()  # type: ignore[no-any-return]


def _hands(row_draws: RowDraws) -> npt.NDArray[np.int64]:
    return (row_draws.uniforms(1)[:, 0] * _HANDS).astype(np.int64)
