"""A windy maze, learned move by move, by two levels of agents and by three.

    python examples/hierarchical.py --levels 2 --seconds 60

An action of a higher level starts an agent of the level below, with a new id, which acts for some steps. All
agents of one level share a policy, which the mapping finds by the prefix of the id.
"""

from typing import Any, Literal

from windy_maze import NAMES, WindyMaze

from menv import PolicySpec
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs

# More entropy: higher levels explore while the level below still learns to obey.
EXPLORES = PolicySpec(config={"entropy_coeff": 0.05})
# Returns of the top level that count as solved.
SOLVED = {1: 0.45, 2: 0.35, 3: 0.85}


def policy_for(agent_id: str, *args: Any, **kwargs: Any) -> str:
    """Return low_level for low_level_17."""
    return "_".join(agent_id.split("_")[:2])


def main(levels: Literal[1, 2, 3] = 2, seconds: float = 60.0, seed: int = 0) -> dict[str, Any]:
    *above, lowest = NAMES[levels]
    policies = {**dict.fromkeys(above, EXPLORES), lowest: None}
    config = {
        "env_config": {"levels": levels},
        "num_envs_per_worker": 32,
        "train_batch_size": 4096,
        "sgd_minibatch_size": 512,
        "num_sgd_iter": 6,
        "lr": 2e-3,
        "multiagent": {"policies": policies, "policy_mapping_fn": policy_for},
        "seed": seed,
    }
    run_dir = next_run_dir(f"maze-{levels}-levels", "PPO")
    stop = {"policy_reward_mean/top_level": SOLVED[levels], "time_total_s": seconds}
    with PPO(env=WindyMaze, config=config) as algo:
        result = algo.learn(stop=stop, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    mean = result["policy_reward_mean"].get("top_level")
    return {"solved": mean is not None and mean >= SOLVED[levels], "return": mean}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
