"""The golden runs: short trainings whose samples, results and final weights are written as one JSON line each.

    python -m tests.golden.runs NAME ...

They use public names only, because they also run with other commits of menv: see `tests.golden.__main__`.
"""

from __future__ import annotations

import faulthandler
import hashlib
import itertools
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from examples.windy_maze import WindyMaze
from menv import DefaultCallbacks, MenvError, Policy, PolicySpec, RandomPolicy, local_policy_inference
from menv.algorithms import DQN, PPO, QMIX, Algorithm
from menv.envs import TwoStepGame
from menv.serving import PolicyClient, PolicyServerInput
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.golden import networks, worlds

Fields = dict[str, str]
"""What is compared of a run, in the order in which it came."""

FLAT: dict[str, Any] = {"fcnet_hiddens": [16]}
LSTM: dict[str, Any] = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5}
GRU: dict[str, Any] = {**LSTM, "use_lstm": False, "use_gru": True}
CONV: dict[str, Any] = {"fcnet_hiddens": [8], "conv_filters": [[4, 4, 2], [4, 3, 2]]}
COMMON: dict[str, Any] = {"seed": 7, "torch_threads": 1, "num_envs_per_worker": 3, "model": FLAT, "lr": 1e-2}
ON_POLICY: dict[str, Any] = {**COMMON, "train_batch_size": 120, "sgd_minibatch_size": 40, "num_sgd_iter": 2}
OFF_POLICY: dict[str, Any] = {
    **COMMON,
    "train_batch_size": 32,
    "training_intensity": 4,
    "num_steps_sampled_before_learning_starts": 30,
    "min_sample_timesteps_per_iteration": 120,
    "rollout_fragment_length": 10,
}
PATIENCE_S = 120.0
"""A run that takes longer hangs: its process prints where, and ends."""
CLOCKS = ("time_this_iter_s", "time_total_s", "sampler_perf")


def update(state: Any, value: Any) -> None:
    """Add a nest of arrays and plain values to a hash."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        state.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, Mapping):
        for key in value:
            state.update(repr(key).encode())
            update(state, value[key])
    elif isinstance(value, list | tuple | np.ndarray):
        state.update(f"{len(value)} items".encode())
        for item in value:
            update(state, item)
    else:
        plain = value is None or isinstance(value, bool | int | float | str | bytes | np.generic)
        state.update((repr(value) if plain else type(value).__name__).encode())


def digest(value: Any) -> str:
    state = hashlib.sha256()
    update(state, value)
    return state.hexdigest()[:16]


def flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the leaves of a result without those that are times."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in CLOCKS:
                yield from flat(item, f"{path}/{key}")
    else:
        yield path, digest(value) if isinstance(value, list | tuple | np.ndarray) else repr(value)


class Recorder(DefaultCallbacks):
    """Records the batches that policies learn from, by column."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: Fields = {}
        self.batches = 0

    def on_learn_on_batch(self, *, policy: Any, train_batch: Any, **kwargs: Any) -> None:
        self.batches += 1
        for column, values in train_batch.items():
            self.fields[f"batch {self.batches} of {policy.policy_id}/{column}"] = digest(values)


class Hooks(Recorder):
    """Records what the hooks about episodes and trajectories are called with, too."""

    def add(self, hook: str, *values: Any) -> None:
        self.fields[f"{hook} {len(self.fields)}"] = digest(values)

    def on_episode_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        self.add("on_episode_start", env_index)

    def on_episode_step(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        self.add("on_episode_step", env_index, episode.length)

    def on_episode_end(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        episode.custom_metrics["steps"] = float(episode.length)
        self.add("on_episode_end", env_index, episode.length, episode.total_reward)

    def on_postprocess_trajectory(
        self, *, agent_id: Any, policy_id: str, postprocessed_batch: Any, **kwargs: Any
    ) -> None:
        self.add("on_postprocess_trajectory", agent_id, policy_id, dict(postprocessed_batch.items()))

    def on_sample_end(self, *, samples: Any, **kwargs: Any) -> None:
        self.add("on_sample_end", {name: samples[name].count for name in samples})


def train(algo: Algorithm, fields: Fields, iterations: int) -> None:
    for _ in range(iterations):
        result = algo.train()
        fields.update(flat(result, f"result {result['training_iteration']}"))


def add_weights(algo: Algorithm, fields: Fields) -> None:
    for policy_id, weights in algo.get_weights().items():
        fields[f"names of weights of {policy_id}"] = digest(list(weights))
        fields[f"weights of {policy_id}"] = digest(list(weights.values()))


def settings(algorithm: type[Algorithm], recorder: Recorder, config: dict[str, Any]) -> dict[str, Any]:
    return {**(ON_POLICY if algorithm is PPO else OFF_POLICY), "callbacks": recorder, **config}


def trained(
    algorithm: type[Algorithm],
    env: Any,
    iterations: int = 2,
    recorder: type[Recorder] = Recorder,
    evaluate: bool = False,
    **config: Any,
) -> Fields:
    """Train and return what happened."""
    watch = recorder()
    with algorithm(env=env, config=settings(algorithm, watch, config)) as algo:
        train(algo, watch.fields, iterations)
        if evaluate:
            watch.fields.update(flat(algo.evaluate(), "evaluation"))
        add_weights(algo, watch.fields)
    return watch.fields


def resumed(algorithm: type[Algorithm], env: Any, **config: Any) -> Fields:
    """Train, save, train another algorithm from there, and act with the policies of the checkpoint."""
    watch, again = Recorder(), Recorder()
    with tempfile.TemporaryDirectory() as folder:
        with algorithm(env=env, config=settings(algorithm, watch, config)) as algo:
            train(algo, watch.fields, 2)
            algo.save(folder)
        given = {"callbacks": again, **({"env": env} if callable(env) else {})}
        with algorithm.from_checkpoint(folder, config=given) as algo:
            train(algo, again.fields, 2)
            add_weights(algo, again.fields)
        policies = Policy.from_checkpoint(folder)
    policy = policies["default_policy"] if isinstance(policies, Mapping) else policies
    policy.observation_space.seed(0)
    observations = [policy.observation_space.sample() for _ in range(20)]
    acted = [local_policy_inference(policy, "env", "agent", obs)[0][0] for obs in observations]
    resumed_fields = {f"resumed: {name}": value for name, value in again.fields.items()}
    return {**watch.fields, **resumed_fields, "actions of the checkpoint": digest(acted)}


def league() -> Fields:
    """Train while policies are added and removed."""
    watch = Recorder()
    multiagent = {"policies": ["main"], "policy_mapping_fn": lambda agent_id, **kw: "main"}
    with PPO(env="tictactoe", config=settings(PPO, watch, {"multiagent": multiagent})) as algo:
        train(algo, watch.fields, 1)
        seats = ["main", "past"]
        algo.add_policy(
            "past",
            policy=algo.get_policy("main"),
            policies_to_train=["main"],
            policy_mapping_fn=lambda agent_id, episode, **kw: seats[int(episode.rng.integers(2))],
        )
        train(algo, watch.fields, 2)
        algo.remove_policy("past", policy_mapping_fn=lambda agent_id, **kw: "main")
        train(algo, watch.fields, 1)
        add_weights(algo, watch.fields)
    return watch.fields


def play(client: PolicyClient, episodes: Iterable[int]) -> None:
    """Play the walk with the policy of a server, until the client is closed at the latest."""
    env = worlds.Walk()
    with suppress(MenvError):
        for seed in episodes:
            episode, over = client.start_episode(f"episode {seed}"), False
            obs, _ = env.reset(seed=seed)
            while not over:
                obs, reward, terminated, truncated, _ = env.step(client.get_action(episode, obs))
                over = terminated or truncated
                client.log_returns(episode, reward)
            client.end_episode(episode, obs, truncated=truncated)


def served(algorithm: type[Algorithm], local: int = 0, **config: Any) -> Fields:
    """Train with the steps of one client over TCP.

    With `local` the client acts by itself, and plays so many episodes before training starts: what it sends while
    the server learns comes at a different moment in each run.
    """
    watch = Recorder()

    def source(context: Any) -> Any:
        return PolicyServerInput(context, "127.0.0.1", 0, transport="tcp")

    spaces = {"observation_space": worlds.NUMBERS, "action_space": worlds.CHOICE}
    with algorithm(config=settings(algorithm, watch, {"input": source, **spaces, **config})) as algo:
        host, port = algo.input_address
        client = PolicyClient(f"tcp://{host}:{port}", "local" if local else "remote", None, seed=3)
        player = threading.Thread(
            target=play, args=(client, range(local) if local else itertools.count()), daemon=True
        )
        player.start()
        if local:
            player.join()
        train(algo, watch.fields, 1 if local else 3)
        add_weights(algo, watch.fields)
        client.close()
        player.join(10.0)
    return {name: value for name, value in watch.fields.items() if "/external/" not in name}


def each_own(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return str(agent_id)


def first_or_not(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return "first" if agent_id in ("a0", "X", "player_1") else "others"


def level_of(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return "_".join(agent_id.split("_")[:2])


def car_or_light(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return "cars" if agent_id.startswith("car") else "lights"


def seen_by_two(agent_obs: Any, *args: Any, **kwargs: Any) -> Any:
    return {agent: np.clip(2 * obs, -1.0, 1.0) for agent, obs in agent_obs.items()}


def aec(config: Any) -> Any:
    from pettingzoo.classic import tictactoe_v3

    return PettingZooEnv(tictactoe_v3.env())


def parallel(config: Any) -> Any:
    from mpe2 import simple_spread_v3

    return ParallelPettingZooEnv(simple_spread_v3.parallel_env(max_cycles=15))


TWO: dict[str, Any] = {"policies": ["first", "others"], "policy_mapping_fn": first_or_not}
PAIR: dict[str, Any] = {"policies": ["agent_1", "agent_2"], "policy_mapping_fn": each_own}
OWN = PolicySpec(policy_class=networks.CentralCritic)
CUSTOM: dict[str, Any] = {
    "policies": {
        "a0": None,
        "a1": PolicySpec(policy_class=worlds.Counting),
        "a2": PolicySpec(policy_class=RandomPolicy),
    },
    "policy_mapping_fn": each_own,
}
LEVELS: dict[str, Any] = {"policies": ["top_level", "low_level"], "policy_mapping_fn": level_of}
ROAD: dict[str, Any] = {
    "policies": {"cars": PolicySpec(algorithm="PPO"), "lights": PolicySpec(algorithm="DQN")},
    "policy_mapping_fn": car_or_light,
}
MIXED: dict[str, Any] = {
    "policies": {
        "team": PolicySpec(algorithm="QMIX", config={"model": {"use_lstm": False}}),
        "a2": None,
        "a3": PolicySpec(config={"model": {"use_lstm": False, "custom_model": networks.RecurrentNet}}),
        "a4": PolicySpec(algorithm="DQN", config={"model": {"use_lstm": False}}),
        "a5": PolicySpec(policy_class=RandomPolicy),
    },
    "policy_mapping_fn": each_own,
}
FILTERED: dict[str, Any] = {
    "observation_filter": "MeanStdFilter",
    "agent_connectors": [("FrameStackAgentConnector", {"num_frames": 3})],
    "clip_rewards": 0.5,
}
PROCESSES: dict[str, Any] = {"engine": "process", "num_workers": 2, "num_envs_per_worker": 2}
REMOTE: dict[str, Any] = {
    "engine": "process",
    "remote_worker_envs": True,
    "remote_env_batch_wait_ms": 2000,
}
PRIORITIZED: dict[str, Any] = {"replay_buffer_config": {"prioritized_replay": True}, "n_step": 3}
EVALUATED: dict[str, Any] = {
    "evaluation_interval": 1,
    "evaluation_duration": 4,
    "evaluation_config": {"explore": False},
}

RUNS: dict[str, Callable[[], Fields]] = {
    "ppo_one_copy": partial(trained, PPO, "CartPole-v1", num_envs_per_worker=1),
    "ppo_copies": partial(trained, PPO, "CartPole-v1", num_envs_per_worker=4, evaluate=True),
    "ppo_continuous": partial(trained, PPO, "Pendulum-v1", normalize_actions=True),
    "ppo_entry_point_vector": partial(trained, PPO, worlds.entry_point_vector, num_envs_per_worker=4),
    "ppo_list_vector": partial(trained, PPO, worlds.list_vector),
    "ppo_crowd": partial(trained, PPO, worlds.Crowd, multiagent=TWO),
    "ppo_six_dicts": partial(trained, PPO, worlds.SixDicts, num_envs_per_worker=3),
    "ppo_table": partial(trained, PPO, worlds.Shoal),
    "ppo_external": partial(trained, PPO, worlds.Counter, num_envs_per_worker=1),
    "ppo_external_agents": partial(trained, PPO, worlds.TwoCounters, num_envs_per_worker=1),
    "ppo_aec_masks": partial(trained, PPO, aec, multiagent=TWO),
    "ppo_parallel": partial(trained, PPO, parallel),
    "ppo_tictactoe_masks": partial(trained, PPO, "tictactoe", multiagent=TWO),
    "ppo_lstm": partial(trained, PPO, worlds.Crowd, model=LSTM, evaluate=True),
    "ppo_lstm_vector": partial(trained, PPO, worlds.sync_vector, model=LSTM),
    "ppo_gru_shared": partial(
        trained, PPO, worlds.Crowd, model={**GRU, "shared_layers": "all"}, multiagent=TWO
    ),
    "ppo_conv": partial(trained, PPO, worlds.Walk, model=CONV, env_config={"image": True}),
    "ppo_nested_mixed_actions": partial(
        trained, PPO, worlds.Crowd, env_config={"obs": "nested", "act": "mixed"}, entropy_coeff=0.01
    ),
    "ppo_dict_actions": partial(trained, PPO, worlds.Crowd, env_config={"act": "dict"}),
    "ppo_custom_model": partial(trained, PPO, worlds.Walk, model={"custom_model": networks.Net}),
    "ppo_custom_recurrent": partial(
        trained, PPO, worlds.Crowd, model={"custom_model": networks.RecurrentNet, "max_seq_len": 4}
    ),
    "ppo_custom_policies": partial(trained, PPO, worlds.Crowd, multiagent=CUSTOM, evaluate=True),
    "ppo_and_dqn": partial(
        trained, PPO, "traffic", env_config={"num_cars": 4, "num_traffic_lights": 2}, multiagent=ROAD
    ),
    "mixed_learners": partial(
        trained,
        PPO,
        worlds.team_and_others,
        env_config={"agents": 6, "steady": True},
        model=LSTM,
        multiagent=MIXED,
    ),
    "ppo_hierarchy": partial(trained, PPO, WindyMaze, multiagent=LEVELS),
    "ppo_critic_obs": partial(trained, PPO, TwoStepGame, critic_obs="all_agents", multiagent=PAIR),
    "ppo_central_critic": partial(
        trained, PPO, TwoStepGame, multiagent={**PAIR, "policies": {"agent_1": OWN, "agent_2": OWN}}
    ),
    "ppo_hooks": partial(trained, PPO, worlds.Crowd, recorder=Hooks, multiagent=TWO),
    "ppo_whole_episodes": partial(
        trained,
        PPO,
        worlds.Crowd,
        batch_mode="complete_episodes",
        multiagent={**TWO, "count_steps_by": "agent_steps", "observation_fn": seen_by_two},
    ),
    "ppo_connectors": partial(trained, PPO, worlds.Walk, evaluate=True, **FILTERED),
    "ppo_league": league,
    "ppo_frozen": partial(
        trained, PPO, worlds.Crowd, inference="torch", multiagent={**TWO, "policies_to_train": ["first"]}
    ),
    "ppo_groups": partial(trained, PPO, worlds.teams, env_config={"agents": 4, "steady": True}),
    "ppo_crashes": partial(trained, PPO, worlds.Walk, env_config={"crash_at": 31}),
    "ppo_resumed": partial(resumed, PPO, "CartPole-v1", **FILTERED),
    "ppo_resumed_lstm": partial(resumed, PPO, worlds.Walk, model=LSTM),
    "ppo_workers": partial(trained, PPO, worlds.Crowd, multiagent=TWO, **PROCESSES),
    "ppo_overlap": partial(trained, PPO, "CartPole-v1", overlap=True, **PROCESSES),
    "ppo_remote_envs": partial(trained, PPO, worlds.Walk, **REMOTE),
    "ppo_evaluated": partial(trained, PPO, worlds.Crowd, **EVALUATED),
    "ppo_evaluation_workers": partial(
        trained, PPO, worlds.Walk, evaluation_num_workers=1, engine="process", **EVALUATED
    ),
    "ppo_served": partial(served, PPO),
    "ppo_served_local": partial(served, PPO, local=20),
    "dqn_copies": partial(trained, DQN, "CartPole-v1", evaluate=True),
    "dqn_vector": partial(trained, DQN, worlds.sync_vector),
    "dqn_table": partial(trained, DQN, worlds.Shoal),
    "dqn_six_dicts": partial(trained, DQN, worlds.SixDicts),
    "dqn_crashes": partial(trained, DQN, worlds.Walk, env_config={"crash_at": 31}),
    "dqn_remote_envs": partial(trained, DQN, worlds.Crowd, **REMOTE),
    "dqn_prioritized": partial(trained, DQN, "CartPole-v1", **PRIORITIZED),
    "dqn_lstm_prioritized": partial(trained, DQN, worlds.Crowd, model=LSTM, **PRIORITIZED),
    "dqn_conv": partial(trained, DQN, worlds.Walk, model=CONV, env_config={"image": True}),
    "dqn_nested": partial(trained, DQN, worlds.Crowd, env_config={"obs": "nested"}, dueling=False),
    "dqn_custom_recurrent": partial(
        trained, DQN, worlds.Crowd, model={"custom_model": networks.RecurrentNet, "max_seq_len": 4}
    ),
    "dqn_tictactoe_masks": partial(trained, DQN, "tictactoe", multiagent=TWO),
    "dqn_aec": partial(trained, DQN, aec),
    "dqn_parallel": partial(trained, DQN, parallel),
    "dqn_external_logged": partial(
        trained, DQN, worlds.LoggingCounter, num_envs_per_worker=1, rollout_fragment_length=9
    ),
    "dqn_workers": partial(trained, DQN, worlds.Walk, **PROCESSES),
    "dqn_resumed": partial(resumed, DQN, "CartPole-v1", **PRIORITIZED),
    "dqn_served": partial(served, DQN),
    "dqn_served_local": partial(served, DQN, local=20),
    "qmix_two_steps": partial(trained, QMIX, worlds.two_steps),
    "qmix_masks": partial(
        trained, QMIX, worlds.teams, env_config={"agents": 4, "steady": True, "mask": True}, evaluate=True
    ),
    "qmix_vdn": partial(trained, QMIX, worlds.teams, env_config={"agents": 4, "steady": True}, mixer="vdn"),
    "qmix_workers": partial(trained, QMIX, worlds.two_steps, **PROCESSES),
}


def main(names: list[str]) -> None:
    for name in names:
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        try:
            fields = RUNS[name]()
        except Exception as error:
            fields = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps([name, fields]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:] or list(RUNS))
