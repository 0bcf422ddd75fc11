"""A policy learns connect four by self-play against a league of its former selves.

    python examples/self_play.py --seconds 60

When it wins most games, a frozen copy of it joins the league. The mapping samples the player and the opponent for each
game. Half of the games are against the untrained copy, which plays nearly at random, so that the learner also sees the
positions that good players avoid.
"""

from typing import Any

from menv import DefaultCallbacks, Episode, RandomPolicy
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs


def against(*opponents: str) -> Any:
    """Return a mapping function: one player is the learner, the other one of the opponents."""

    def policy_for(agent_id: str, episode: Episode, **kwargs: Any) -> str:
        game = episode.user_data
        if not game:
            game["learner"] = episode.rng.choice(["player1", "player2"])
            untrained = episode.rng.random() < 0.5
            game["opponent"] = opponents[0] if untrained else episode.rng.choice(opponents)
        return "learner" if agent_id == game["learner"] else str(game["opponent"])

    return policy_for


def win_rate(result: Any) -> float:
    returns = result["hist_stats"]["policy_learner_reward"][-result["episodes_this_iter"] :]
    return float(returns.count(1.0) / len(returns))


class League(DefaultCallbacks):
    """Adds a frozen copy of the learner every ten iterations, if the learner wins more than 80 % of its games."""

    def on_train_result(self, *, algorithm: PPO, result: Any, **kwargs: Any) -> None:
        result["win_rate"] = win_rate(result)
        opponents = [name for name in algorithm.get_weights() if name != "learner"]
        result["opponents"] = len(opponents)
        if result["win_rate"] > 0.8 and algorithm.iteration % 10 == 0:
            new = f"snapshot_{len(opponents)}"
            mapping = against(*opponents, new)
            algorithm.add_policy(new, policy_mapping_fn=mapping, policies_to_train=["learner"])
            algorithm.set_weights({new: algorithm.get_weights(["learner"])["learner"]})


CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 64,
    "train_batch_size": 4096,
    "sgd_minibatch_size": 512,
    "num_sgd_iter": 4,
    "lr": 1e-3,
    "gamma": 1.0,
    "lambda": 0.8,
    "entropy_coeff": 0.05,
    "grad_clip": 5.0,
    "model": {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu"},
    "multiagent": {
        "policies": ["learner", "snapshot_0"],
        "policy_mapping_fn": against("snapshot_0"),
        "policies_to_train": ["learner"],
    },
    "callbacks": League,
    "evaluation_duration": 1000,
    "evaluation_config": {"explore": False},
}


def main(seconds: float = 60.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("connect-four", "PPO")
    with PPO(env="connect_four", config={**CONFIG, "seed": seed}) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
        opponents = len(algo.get_weights()) - 1
        algo.add_policy("random", RandomPolicy, policy_mapping_fn=against("random"))
        won = win_rate(algo.evaluate()["evaluation"])
    print("wrote", plot_runs([run_dir], key="win_rate"))
    print(f"1,000 games against a random player: {won:.1%} won")
    return {"won": won, "opponents": opponents}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
