"""What a policy learns against opponents that follow a rule, with a recurrent network and without.

    python examples/rock_paper_scissors.py --model lstm

The mapping samples an opponent for each game of ten rounds. The learner sees the opponent's last hand. That is enough
against an opponent that always shows the same hand. Against one that beats the learner's last hand, the learner has to
remember what it played: an LSTM can.
"""

from typing import Any, Literal

from menv import Episode, PolicySpec
from menv.algorithms import PPO
from menv.envs import AlwaysSame, BeatLastMove, RockPaperScissors
from menv.tracking import next_run_dir, plot_runs

OPPONENTS = ["always_same", "beat_last_move"]
MODELS: dict[str, dict[str, Any]] = {
    "feed_forward": {},
    "lstm": {"use_lstm": True, "lstm_cell_size": 32, "fcnet_hiddens": [32]},
}


def policy_for(agent_id: str, episode: Episode, **kwargs: Any) -> str:
    if agent_id == "player1":
        return "learner"
    return str(episode.rng.choice(OPPONENTS))


CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 32,
    "train_batch_size": 2048,
    "num_sgd_iter": 8,
    "lr": 5e-3,
    "gamma": 0.9,
    "lambda": 0.8,
    "entropy_coeff_schedule": [[0, 0.01], [200_000, 0]],
    "multiagent": {
        "policies": {
            "learner": None,
            "always_same": PolicySpec(policy_class=AlwaysSame),
            "beat_last_move": PolicySpec(policy_class=BeatLastMove),
        },
        "policy_mapping_fn": policy_for,
    },
}


def main(
    model: Literal["feed_forward", "lstm"] = "feed_forward", seconds: float = 20.0, seed: int = 0
) -> dict[str, Any]:
    run_dir = next_run_dir(f"rock-paper-scissors-{model}", "PPO")
    config = {**CONFIG, "model": MODELS[model], "seed": seed}
    with PPO(env=RockPaperScissors, config=config) as algo:
        result = algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    return result["policy_reward_mean"]


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
