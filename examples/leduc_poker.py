"""OpenSpiel's Leduc poker by self-play, measured by exploitability: what a perfect opponent would win per game.

    pip install "menv-rl[train,plot]" open_spiel
    python examples/leduc_poker.py --seconds 60

Any game of OpenSpiel trains from its name: `menv train openspiel:leduc_poker --policies per-agent`. A uniformly random
player loses 2.37 chips per game to a perfect opponent. The policies of self-play circle around the equilibrium; entropy
keeps them mixed.
"""

from typing import Any

import numpy as np
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms.exploitability import exploitability

from menv import DefaultCallbacks
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs
from menv.wrappers import OpenSpielEnv

GAME = OpenSpielEnv("leduc_poker").game


def policy_for(agent_id: str, *args: Any, **kwargs: Any) -> str:
    return agent_id


def tabular(algo: PPO) -> Any:
    """Return the probabilities of the policies in every information state, as OpenSpiel's table."""
    table = spiel_policy.TabularPolicy(GAME)
    for state in table.states:
        player = state.current_player()
        obs = {
            "observation": np.array(state.information_state_tensor(player), np.float32),
            "action_mask": np.array(state.legal_actions_mask(), np.int8),
        }
        policy: Any = algo.get_policy(f"player_{player}")
        table.policy_for_key(state.information_state_string(player))[:] = policy.action_probabilities(obs)
    return table


class Exploitability(DefaultCallbacks):
    """Adds the exploitability to the result of every tenth iteration."""

    def on_train_result(self, *, algorithm: PPO, result: Any, **kwargs: Any) -> None:
        if algorithm.iteration % 10 == 1:
            result["exploitability"] = exploitability(GAME, tabular(algorithm))


CONFIG: dict[str, Any] = {
    "num_envs_per_worker": 64,
    "train_batch_size": 4096,
    "sgd_minibatch_size": 1024,
    "num_sgd_iter": 4,
    "lr": 1e-3,
    "gamma": 1.0,
    "entropy_coeff": 0.05,
    "callbacks": Exploitability,
    "multiagent": {"policies": ["player_0", "player_1"], "policy_mapping_fn": policy_for},
}


def main(seconds: float = 60.0, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("leduc-poker", "PPO")
    with PPO(env="openspiel:leduc_poker", config={**CONFIG, "seed": seed}) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
        last = float(exploitability(GAME, tabular(algo)))
    print("wrote", plot_runs([run_dir], key="exploitability"))
    return {"exploitability": last}


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
