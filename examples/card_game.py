"""A card game of our own, learned by self-play: Goofspiel with five cards.

    python examples/card_game.py --seconds 30
    menv play runs/card-game-PPO-001 --as player1 --import examples/card_game.py

Each player holds the cards 1 to 5. A prize of 1 to 5 points is turned up, both players bid a card at the same time, and
the higher bid takes the prize. Cards that were played are gone: the action mask forbids them. The player with more
points after five prizes wins.
"""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from menv import Episode, MultiAgentEnv, RandomPolicy, register_env
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs

CARDS = 5
PLAYERS = ["player1", "player2"]


class Goofspiel(MultiAgentEnv):
    possible_agents = PLAYERS
    # Own cards, the other player's cards, the prize (one flag for each card), and the lead in points.
    observation_space = gym.spaces.Dict(
        {
            "observations": gym.spaces.Box(-15.0, 15.0, (3 * CARDS + 1,), np.float32),
            "action_mask": gym.spaces.MultiBinary(CARDS),
        }
    )
    action_space = gym.spaces.Discrete(CARDS)
    render_mode = "ansi"
    metadata: ClassVar[dict[str, Any]] = {"action_names": list("12345")}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.agents = list(PLAYERS)
        self.hands = {player: np.ones(CARDS, np.int8) for player in PLAYERS}
        self.points = dict.fromkeys(PLAYERS, 0)
        self.prizes = list(self.np_random.permutation(CARDS))
        self.bids: dict[str, int] = {}
        return self.observe(), {}

    def step(self, action_dict: dict[str, int]) -> Any:
        self.bids = {player: int(card) for player, card in action_dict.items()}
        prize = self.prizes.pop()
        for player, card in self.bids.items():
            self.hands[player][card] = 0
        first, second = (self.bids[player] for player in PLAYERS)
        if first != second:
            self.points[PLAYERS[int(second > first)]] += int(prize) + 1
        over = not self.prizes
        rewards = {player: float(over * np.sign(self.lead(player))) for player in PLAYERS}
        observations = self.observe()
        if over:
            self.agents = []
        return observations, rewards, {"__all__": over}, {"__all__": False}, {}

    def observe(self) -> dict[str, Any]:
        prize = np.zeros(CARDS)
        if self.prizes:
            prize[self.prizes[-1]] = 1
        observations = {}
        for player, other in (PLAYERS, PLAYERS[::-1]):
            seen = np.concatenate((self.hands[player], self.hands[other], prize, [self.lead(player)]))
            observations[player] = {
                "observations": seen.astype(np.float32),
                "action_mask": self.hands[player].copy(),
            }
        return observations

    def lead(self, player: str) -> int:
        return 2 * self.points[player] - sum(self.points.values())

    def render(self) -> str:
        bids = {player: card + 1 for player, card in self.bids.items()}
        prize = f"the prize is {self.prizes[-1] + 1}" if self.prizes else "the end"
        return f"bids   {bids}\npoints {self.points}\n{prize}"

    def render_for(self, agent_id: str) -> str:
        return self.render()  # all cards but the next bid are open


register_env("card_game", lambda context: Goofspiel())


def policy_for(agent_id: str, episode: Episode, **kwargs: Any) -> str:
    """Return the learner for both players, or in half of the games a random player2, to measure progress."""
    if agent_id == "player2" and episode.episode_id % 2 == 0:
        return "random"
    return "learner"


def main(seconds: float = 30.0, seed: int = 0) -> dict[str, Any]:
    config = {
        "num_envs_per_worker": 64,
        "train_batch_size": 4096,
        "gamma": 1.0,
        "entropy_coeff": 0.02,
        "multiagent": {
            "policies": {"learner": None, "random": RandomPolicy},
            "policy_mapping_fn": policy_for,
            "policies_to_train": ["learner"],
        },
        "seed": seed,
    }
    run_dir = next_run_dir("card-game", "PPO")
    with PPO(env="card_game", config=config) as algo:
        result = algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    return result["policy_reward_mean"]


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
