"""The server of a game that runs elsewhere, such as in a game engine: two teams of two, and a policy for each team.

    python examples/unity3d_server.py --port 9900
    python examples/unity3d_client.py --port 9900

Nothing of the game runs here: a stub with random agents declares its agents and spaces. Several games may be played at
the same time. Ctrl-C ends the server.
"""

from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

from menv.algorithms import PPO
from menv.envs import RandomMultiAgentEnv
from menv.serving.policy_server import PolicyServerInput
from menv.tracking import next_run_dir, plot_runs

GAME: dict[str, Any] = {
    "num_agents": ["blue_0", "blue_1", "purple_0", "purple_1"],
    # Positions of the player, the ball and the goal.
    "observation_space": gym.spaces.Box(-10.0, 10.0, (6,), np.float32),
    # Back, stay or forward; left, stay or right.
    "action_space": gym.spaces.MultiDiscrete([3, 3]),
}


def policy_for(agent_id: str, *args: Any, **kwargs: Any) -> str:
    return agent_id.partition("_")[0]


def main(port: int = 9900, stop_iters: int = 100_000, seed: int = 0) -> dict[str, Any]:
    config = {
        "env": RandomMultiAgentEnv,
        "env_config": GAME,
        "input": lambda ioctx: PolicyServerInput(ioctx, port=port, idle_timeout=None),
        "multiagent": {"policies": ["blue", "purple"], "policy_mapping_fn": policy_for},
        "train_batch_size": 512,
        "seed": seed,
    }
    run_dir = next_run_dir("unity3d", "PPO")
    with PPO(config=config) as algo:
        with suppress(KeyboardInterrupt):
            algo.learn(stop={"training_iteration": stop_iters}, run_dir=run_dir, progress_bar=True)
        iterations = algo.iteration
    if iterations:
        print("wrote", plot_runs([run_dir]))
    return {"iterations": iterations}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
