"""A policy learns connect four by self-play against a league of its former selves.

    python examples/self_play.py --seconds 60

`self_play` freezes a copy of the policy every ten iterations. Half of the games have the policy on both sides. In the
others its opponent is a random player, so that it also sees the positions that good players avoid, or a snapshot, the
more often the better that plays against it.
"""

from typing import Any

from connect_four import ConnectFour

from menv import Episode
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs


def against_random(agent_id: str, episode: Episode, **kwargs: Any) -> str:
    """Return the policies of an evaluation; the learner begins every other game."""
    learner = "player1" if episode.episode_id % 2 else "player2"
    return "default_policy" if agent_id == learner else "random"


CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 64,
    "train_batch_size": 4096,
    "sgd_minibatch_size": 512,
    "lr": 1e-3,
    "lambda": 0.8,
    "entropy_coeff": 0.02,
    "model": {"fcnet_hiddens": [128, 128]},
    "self_play": {"matchmaking": {"current": 0.5, "prioritized": 0.25, "random": 0.25}},
    "evaluation_duration": 1000,
    "evaluation_config": {"explore": False, "multiagent": {"policy_mapping_fn": against_random}},
}


def main(seconds: float = 60.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("connect-four", "PPO")
    with PPO(env=ConnectFour, config={**CONFIG, "seed": seed}) as algo:
        result: Any = algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
        won = algo.evaluate()["evaluation"]["matchups"]["default_policy"]["random"]["win"]
    print("wrote", plot_runs([run_dir], key="league/rating/default_policy"))
    print(f"1,000 games against a random player: {won:.1%} won")
    return {"won": won, "members": result["league"]["members"]}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
