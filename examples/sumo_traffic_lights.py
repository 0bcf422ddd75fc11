"""One policy learns to switch the four traffic lights of a town in SUMO, and is compared with two rules.

    python examples/sumo_traffic_lights.py --seconds 240

On ten new days the mean waiting time of a car is measured with a fixed time for each green (the best one of four), with
green for the longest queue, and with the policy. Cars that wait for a place on their first road count too.
"""

from collections.abc import Callable
from typing import Any

from sumo_town import LIGHTS, Town

from menv import Policy, register_env
from menv.algorithms import PPO
from menv.tracking import next_run_dir, plot_runs

register_env("sumo_town", lambda context: Town())

CONFIG: dict[str, Any] = {
    "train_batch_size": 480,
    "sgd_minibatch_size": 240,
    "num_sgd_iter": 10,
    "lr": 1e-3,
    "gamma": 0.95,
    "lambda": 0.9,
    "entropy_coeff": 0.01,
    "model": {"fcnet_hiddens": [64, 64]},
}
Controller = Callable[[Town, dict[str, Any]], dict[str, int]]


def fixed_time(green: int) -> Controller:
    """Return a controller that changes all lights every so many seconds."""
    return lambda town, obs: dict.fromkeys(LIGHTS, town.time // green % 2)


def longest_queue(town: Town, obs: dict[str, Any]) -> dict[str, int]:
    actions = {}
    for light in LIGHTS:
        north, east, south, west = town.waiting(light)
        actions[light] = town.green[light]
        if north + south != east + west:
            actions[light] = int(east + west > north + south)
    return actions


def learned(policy: Policy) -> Controller:
    def choose(town: Town, obs: dict[str, Any]) -> dict[str, int]:
        actions = policy.compute_actions(list(obs.values()), explore=False)[0]
        return dict(zip(obs, map(int, actions), strict=True))

    return choose


def mean_wait(controller: Controller, days: int) -> float:
    """Return the mean waiting time of a car in seconds."""
    town = Town()
    waits: list[float] = []
    for day in range(days):
        obs, _ = town.reset(seed=1000 + day)
        while town.agents:
            obs = town.step(controller(town, obs))[0]
        waits.append(town.mean_wait)
    town.close()
    return sum(waits) / days


def main(seconds: float = 240.0, days: int = 10, seed: int = 0) -> dict[str, Any]:
    run_dir = next_run_dir("sumo-town", "PPO")
    with PPO(env="sumo_town", config={**CONFIG, "seed": seed}) as algo:
        algo.learn(stop={"time_total_s": seconds}, run_dir=run_dir, progress_bar=True)
    print("wrote", plot_runs([run_dir]))
    policy: Any = Policy.from_checkpoint(run_dir, policy_ids=["default_policy"])["default_policy"]
    return {
        "fixed_time": min(mean_wait(fixed_time(green), days) for green in (10, 15, 20, 30)),
        "longest_queue": mean_wait(longest_queue, days),
        "learned": mean_wait(learned(policy), days),
    }


if __name__ == "__main__":
    from flags import run_with_flags

    run_with_flags(main)
