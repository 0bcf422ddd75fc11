"""The lines by which two checkouts are compared, and the process that runs them; `benchmarks.against` starts two.

Public names of menv only: the same file runs with the `menv` of another commit.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from benchmarks.null_env import NullEnv
from menv import BaseEnv, CallOrderError
from menv.algorithms import DQN, PPO, QMIX, Algorithm
from menv.envs import MultiAgentTrafficEnv, RandomMultiAgentEnv, TicTacToe, TwoStepGame
from menv.serving import PolicyClient, PolicyServerInput

Once = Callable[[], object]
WARM_UP = 3
"""Calls of a line before it is measured."""
OBS = np.random.default_rng(0).uniform(-0.2, 0.2, (101, 4)).astype(np.float32)
"""Observations of CartPole, the last one for the end of an episode."""
SHOAL = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "shoal.py"))["Shoal"]


@contextmanager
def _sampling(env: Any, envs: int = 1, length: int = 64, **config: Any) -> Iterator[Once]:
    """Yield the collection of one fragment."""
    sizes = {"num_envs_per_worker": envs, "rollout_fragment_length": length}
    batch = envs * length * config.get("num_workers", 1)
    with PPO(env=env, config={**sizes, "train_batch_size": batch, "seed": 0, **config}) as algo:
        yield algo.sample


@contextmanager
def _learning(kind: Callable[..., Algorithm], env: Any, **config: Any) -> Iterator[Once]:
    """Yield one iteration of training."""
    with kind(env=env, config={"seed": 0, **config}) as algo:
        yield algo.train


def _vector(num_envs: int, context: Any) -> Any:
    return gym.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")


class Images(gym.Env[Any, Any]):
    """Returns the same image of 96 x 96 pixels in each step."""

    observation_space = gym.spaces.Box(0, 255, (96, 96, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps, self.image = 0, np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
        return self.image.copy(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.image.copy(), 1.0, self.steps == 100, False, {}


def _team(context: Any) -> Any:
    return TwoStepGame({"with_state": True}).with_agent_groups({"team": ("agent_1", "agent_2")})


def _two_policies(agent_id: str, **kwargs: Any) -> str:
    return "one" if agent_id.startswith(("player1", "car")) else "other"


class DictEnv(BaseEnv):
    """A custom `BaseEnv` that returns six nested dicts: 8 matches of two agents, 50 steps each."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    num_envs = 8

    def __init__(self, context: Any) -> None:
        self.at = dict.fromkeys(range(self.num_envs), 0)
        self.out = list(self.at)

    def poll(self, timeout: float | None = None) -> Any:
        out, self.out = self.out, []
        obs = {match: dict.fromkeys("ab", OBS[self.at[match]]) for match in out}
        rewards = {match: {"a": 1.0, "b": -1.0} for match in out}
        over = {match: {"__all__": self.at[match] == 50} for match in out}
        return obs, rewards, over, {match: {"__all__": False} for match in out}, {}, {}

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.out = list(slots)
        for match in slots:
            self.at[match] += 1

    def try_reset(self, env_id: Any = None, **_: Any) -> Any:
        self.at[env_id] = 0
        return {env_id: dict.fromkeys("ab", OBS[0])}, {}


class Network(nn.Module):
    """A custom model."""

    def __init__(self, obs_space: Any, num_outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_space.shape[0], 64), nn.Tanh())
        self.policy, self.value = nn.Linear(64, num_outputs), nn.Linear(64, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(obs)
        return self.policy(features), self.value(features)[:, 0]


@contextmanager
def _server(transport: Any, sample: bool = True) -> Iterator[tuple[Algorithm, tuple[str, int]]]:
    """Yield an algorithm that clients play for, and its address; with `sample` a thread samples without learning."""

    def sample_all() -> None:
        with contextlib.suppress(CallOrderError):
            while True:
                algo.sample()

    clients = partial(PolicyServerInput, port=0, transport=transport, force_on_policy=False)
    sizes = {"train_batch_size": 1000, "rollout_fragment_length": 1000}
    with PPO(env="CartPole-v1", config={"input": clients, "seed": 0, **sizes}) as algo:
        if sample:
            threading.Thread(target=sample_all, daemon=True).start()
        yield algo, algo.input_address


@contextmanager
def _client(transport: str, mode: Any) -> Iterator[Once]:
    """Yield an episode of 100 steps by a `PolicyClient`."""

    def play() -> None:
        episode = client.start_episode()
        for obs in OBS[:-1]:
            client.get_action(episode, obs)
            client.log_returns(episode, 1.0)
        client.end_episode(episode, OBS[-1])

    with _server(transport) as (_, (host, port)):
        client = PolicyClient(f"{transport}://{host}:{port}", mode, None)
        yield play
        client.close()


def _send(client: socket.socket, **message: Any) -> None:
    """Send a message as the protocol has it over TCP, without menv."""
    body = json.dumps(message).encode()
    client.sendall(b"%08d%b" % (len(body), body))


@contextmanager
def _many_clients(count: int) -> Iterator[Once]:
    """Yield an episode of 20 steps by each of many clients, all of which ask at once."""
    obs, episode = OBS.tolist(), 0

    def play() -> None:
        nonlocal episode
        episode += 1
        for step in range(22):
            kind = "END_EPISODE" if step == 21 else "GET_ACTION" if step else "START_EPISODE"
            more = {"observation": obs[step]} if step else {}
            for number, client in enumerate(clients):
                _send(client, type=kind, episode_id=f"{number}-{episode}", **more)
            for client in clients:
                answer = client.recv(int(client.recv(8, socket.MSG_WAITALL)), socket.MSG_WAITALL)
                assert b'"ERROR"' not in answer, answer

    with _server("tcp") as (_, address), ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(count)]
        yield play


@contextmanager
def _episodes() -> Iterator[Once]:
    """Yield a fragment of 20 episodes that a client has played, in four messages."""
    columns = {"obs": OBS[:51].tolist(), "actions": [0, 1] * 25, "rewards": [1.0] * 50}
    more = {"action_logp": [-0.7] * 50, "is_terminated": True, "is_truncated": False}

    def play() -> None:
        for _ in range(4):
            _send(client, type="EPISODES", episodes=[{**columns, **more}] * 5)
        algo.sample()

    with _server("tcp", sample=False) as (algo, address), socket.create_connection(address, 60) as client:
        yield play


_TWO = {"policies": ["one", "other"], "policy_mapping_fn": _two_policies}
_CARS = {"num_cars": 4, "num_traffic_lights": 2}
_FILTERS: dict[str, Any] = {"observation_filter": "MeanStdFilter", "clip_rewards": True}
_REMOTE: dict[str, Any] = {"remote_worker_envs": True, "engine": "process"}
_PPO = {"num_envs_per_worker": 16, "train_batch_size": 2048, "sgd_minibatch_size": 256, "num_sgd_iter": 4}
_DQN = {"num_envs_per_worker": 8, "num_steps_sampled_before_learning_starts": 200}
LINES: dict[str, Callable[[], AbstractContextManager[Once]]] = {
    "sampling_cartpole_1": partial(_sampling, "CartPole-v1", 1, 1000),
    "sampling_cartpole_64": partial(_sampling, "CartPole-v1", 64, 128),
    "sampling_vector_64": partial(_sampling, partial(_vector, 64), 64),
    "sampling_vector_1024": partial(_sampling, partial(_vector, 1024), 1024, 16),
    "sampling_tictactoe": partial(_sampling, TicTacToe, 16, 128, multiagent=_TWO),
    "sampling_random": partial(_sampling, RandomMultiAgentEnv, 16, env_config={"num_agents": 4}),
    "sampling_traffic": partial(_sampling, MultiAgentTrafficEnv, 16, env_config=_CARS, multiagent=_TWO),
    "sampling_null_100": partial(_sampling, NullEnv, 4, env_config={"num_agents": 100}),
    "sampling_null_10000": partial(_sampling, NullEnv, 1, 8, env_config={"num_agents": 10_000}),
    "sampling_tables": partial(_sampling, SHOAL, 16, 50),
    "sampling_dicts": partial(_sampling, DictEnv, 8, 50),
    "sampling_lstm": partial(_sampling, "CartPole-v1", 16, model={"use_lstm": True}),
    "sampling_connectors": partial(_sampling, "Pendulum-v1", 16, **_FILTERS),
    "learning_ppo": partial(_learning, PPO, "CartPole-v1", **_PPO),
    "learning_dqn": partial(_learning, DQN, "CartPole-v1", **_DQN),
    "learning_qmix": partial(_learning, QMIX, _team, num_envs_per_worker=8),
    "learning_custom_model": partial(_learning, PPO, "CartPole-v1", model={"custom_model": Network}, **_PPO),
    "serving_tcp": partial(_client, "tcp", "remote"),
    "serving_tcp_64": partial(_many_clients, 64),
    "serving_http": partial(_client, "http", "remote"),
    "serving_local": partial(_client, "tcp", "local"),
    "serving_episodes": _episodes,
    "workers_2": partial(_sampling, "CartPole-v1", 64, 128, num_workers=2, engine="process"),
    "workers_2_images": partial(
        _sampling,
        Images,
        8,
        32,
        num_workers=2,
        engine="process",
        model={"conv_filters": [[4, 8, 8]], "fcnet_hiddens": [8]},
    ),
    "workers_overlap": partial(
        _learning, PPO, "CartPole-v1", num_workers=2, overlap=True, engine="process", **_PPO
    ),
    "workers_remote_envs": partial(_sampling, "CartPole-v1", 4, 128, **_REMOTE),
}


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it has started, where Linux lists them."""
    seconds, processes = time.process_time(), [os.getpid()]
    while processes:
        for listed in Path(f"/proc/{processes.pop()}/task").glob("*/children"):
            for process in map(int, listed.read_text().split()):
                processes.append(process)
                # The clock of another process, as clock_getcpuclockid(3) names it.
                seconds += time.clock_gettime(~process << 3 | 2)
    return seconds


def timed(once: Once, calls: int) -> dict[str, float]:
    """Return CPU seconds and wall time of some calls."""
    gc.collect()
    cpu, start = _cpu_seconds(), time.perf_counter()
    for _ in range(calls):
        once()
    wall = time.perf_counter() - start
    return {"cpu": _cpu_seconds() - cpu, "wall": wall}


def main() -> None:
    """Answer each `[name, calls]` of standard input with the times of that line; 0 calls set it up first."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    once: Once = int
    with ExitStack() as stack:
        for request in sys.stdin:
            name, calls = json.loads(request)
            if not calls:
                stack.close()
                gc.unfreeze()
                once = stack.enter_context(LINES[name]())
                timed(once, WARM_UP)
                gc.freeze()
            print(json.dumps(timed(once, calls or 1)), file=answers, flush=True)


if __name__ == "__main__":
    main()
