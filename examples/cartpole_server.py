"""A server that learns CartPole-v1 from clients, which play it in other processes.

    python examples/cartpole_server.py --run PPO --port 9900
    python examples/cartpole_client.py --inference-mode local --port 9900

It ends when the mean return reaches --stop-reward, or with Ctrl-C. With --transport rllink, `rllink_client.py` plays.
"""

from contextlib import suppress
from typing import Any, Literal

import gymnasium as gym

from menv.algorithms import DQN, PPO
from menv.env_context import InputContext
from menv.serving.policy_server import PolicyServerInput, RLlinkInput
from menv.tracking import next_run_dir, plot_runs

ALGORITHMS = {"PPO": PPO, "DQN": DQN}
SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {"train_batch_size": 1024, "sgd_minibatch_size": 256, "num_sgd_iter": 4, "lr": 3e-3},
    "DQN": {"exploration_config": {"epsilon_timesteps": 5_000}},
}


def main(
    run: Literal["PPO", "DQN"] = "PPO",
    address: str = "127.0.0.1",
    port: int = 9900,
    transport: Literal["http", "tcp", "rllink"] = "http",
    stop_reward: float = 1e9,
    seed: int = 0,
) -> dict[str, Any]:
    def clients(ioctx: InputContext) -> Any:
        if transport == "rllink":
            return RLlinkInput(ioctx, address, port, idle_timeout=None)
        return PolicyServerInput(
            ioctx, address, port, transport=transport, idle_timeout=None, force_on_policy=True
        )

    env = gym.make("CartPole-v1")
    config = {
        **SETTINGS[run],
        "input": clients,
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "seed": seed,
    }
    run_dir = next_run_dir("cartpole-server", run)
    with ALGORITHMS[run](config=config) as algo:
        with suppress(KeyboardInterrupt):
            algo.learn(stop={"episode_reward_mean": stop_reward}, run_dir=run_dir, progress_bar=True)
        iterations = algo.iteration
    if iterations:
        print("wrote", plot_runs([run_dir]))
    return {"iterations": iterations}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
