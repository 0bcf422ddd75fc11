"""Rock, paper, scissors: the smallest zero-sum game of two agents, and two rule-based policies for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from menv import rng
from menv.base_env import ALL
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from menv.policy import RowDraws, SamplingPolicy

PLAYERS = ("player1", "player2")
ROCK, PAPER, SCISSORS, NOTHING = 0, 1, 2, 3
_SCORES = (0.0, 1.0, -1.0)
_HANDS = 3


class RockPaperScissors(MultiAgentEnv):
    """Both players show a hand at once; paper beats rock, scissors beat paper, rock beats scissors.

    - Agents: `"player1"` and `"player2"`, both in every step.
    - Observation: Discrete(4), the hand that the other one showed last; 3 before the first round.
    - Action: Discrete(3), rock, paper, scissors.
    - Reward: 1.0 for a round won, -1.0 for one lost, 0.0 for equal hands.
    - End: terminated after `rounds` rounds, which is the rule of the game and no time limit.

    Args:
        config: `"rounds"` (default 10).

    Raises:
        ConfigError: `"rounds"` is less than 1.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.rounds = (config or {}).get("rounds", 10)
        if self.rounds < 1:
            raise ConfigError(
                f"RockPaperScissors: rounds is {self.rounds!r}, expected 1 or more; change the config"
            )
        self.possible_agents = list(PLAYERS)
        self.observation_space = gym.spaces.Discrete(4)
        self.action_space = gym.spaces.Discrete(3)
        self._rounds_left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        """Start a new series; the game is deterministic, so `seed` has no effect."""
        self._rounds_left = self.rounds
        self.agents = list(PLAYERS)
        return dict.fromkeys(PLAYERS, NOTHING), {}

    def step(self, action_dict: AgentDict) -> StepDicts:
        """Play one round.

        Raises:
            CallOrderError: The series is over, or never began.
            ContractError: Not both players showed one of the three hands.
        """
        if not self._rounds_left:
            raise CallOrderError(
                "RockPaperScissors.step: no game is running, expected reset first; call reset"
            )
        if action_dict.keys() != set(PLAYERS) or any(hand not in (0, 1, 2) for hand in action_dict.values()):
            raise ContractError(
                f"RockPaperScissors.step: got {action_dict!s:.80}, expected 0, 1 or 2 for each of "
                f"{', '.join(PLAYERS)}; answer both"
            )
        self._rounds_left -= 1
        first, second = (int(action_dict[player]) for player in PLAYERS)
        score = _SCORES[(first - second) % 3]
        over = self._rounds_left == 0
        if over:
            self.agents = []
        return (
            {"player1": second, "player2": first},
            {"player1": score, "player2": -score},
            {"player1": over, "player2": over, ALL: over},
            {ALL: False},
            {},
        )


class AlwaysSame(SamplingPolicy):
    """Samples one hand for each episode and shows it in every round.

    Config: `"hand"`, 0, 1 or 2, is shown in all episodes. A call without episodes samples one hand from `"seed"`.
    """

    def answer(
        self, obs_batch: Sequence[Any], row_draws: RowDraws, explore: bool | None, episodes: Sequence[Any]
    ) -> Sequence[Any]:
        """Return R hands that depend on the player and the episode only.

        Raises:
            ConfigError: `config["hand"]` is not a hand.
        """
        hand = self.config.get("hand")
        if hand is not None:
            if hand not in range(_HANDS):
                raise ConfigError(
                    f"AlwaysSame: hand is {hand!r}, expected 0, 1, 2 or None; change the policy's config"
                )
            return [hand] * len(obs_batch)
        if not episodes:
            return [rng.key(int(self.config.get("seed", 0)), 0) % _HANDS] * len(obs_batch)
        # Sampled in each round from the same numbers, so that no state is needed.
        numbers = np.array([episode.episode_id for episode in episodes], np.int64)
        return _hands(RowDraws(row_draws.keys, numbers)).tolist()  # type: ignore[no-any-return]


class BeatLastMove(SamplingPolicy):
    """Shows the hand that beats the opponent's last one; the first hand is sampled."""

    def answer(
        self, obs_batch: Sequence[Any], row_draws: RowDraws, explore: bool | None, episodes: Sequence[Any]
    ) -> Sequence[Any]:
        """Return R hands that depend on the observations and, in a first round, on `row_draws` alone."""
        seen = np.asarray(obs_batch).reshape(-1)
        hands = np.where(seen == NOTHING, _hands(row_draws), (seen + 1) % _HANDS)
        return hands.tolist()  # type: ignore[no-any-return]


def _hands(row_draws: RowDraws) -> npt.NDArray[np.int64]:
    return (row_draws.uniforms(1)[:, 0] * _HANDS).astype(np.int64)
