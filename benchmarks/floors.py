"""The bare loops: how fast the environments themselves are, with nothing of menv around them.

A benchmark divides its own rate by one of these, measured in the same run. Each loop steps the environments
as a user would write it by hand, default `gymnasium.make` wrappers and all: resets of finished episodes are
inside the measured time; making the environments, their first resets and the random numbers are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from menv.base_env import ALL, BaseEnv
from menv.multi_agent_env import MultiAgentEnv

BLOCK = 4096
"""Draws that are made beforehand per agent; loops that are longer use them again."""


class Rate(NamedTuple):
    """Steps per second of a loop; an agent step is one action of one agent."""

    env_steps: float
    agent_steps: float


def bare_gym(env_id: str, num_envs: int, env_steps: int, seed: int = 0) -> float:
    """Step `num_envs` gymnasium environments in turn and return env steps per second.

    Args:
        env_id: For `gymnasium.make`.
        num_envs: Environments that are stepped one after another.
        env_steps: Of all environments together.
        seed: Of the actions and the first resets.
    """
    envs: list[gym.Env[Any, Any]] = [gym.make(env_id) for _ in range(num_envs)]
    for index, env in enumerate(envs):
        env.reset(seed=seed + index)
    rounds = max(1, env_steps // num_envs)
    actions = draw_actions(envs[0].action_space, min(rounds, BLOCK) * num_envs, seed)
    at, wrap = 0, len(actions)
    start = time.perf_counter()
    for _ in range(rounds):
        for env in envs:
            _, _, terminated, truncated, _ = env.step(actions[at])
            at += 1
            if terminated or truncated:
                env.reset()
        if at == wrap:
            at = 0
    seconds = time.perf_counter() - start
    for env in envs:
        env.close()
    return rounds * num_envs / seconds


def bare_multi_agent(
    make_env: Callable[[int], MultiAgentEnv], num_envs: int, env_steps: int, seed: int = 0
) -> Rate:
    """Step `num_envs` multi-agent environments in turn, each agent with actions of its own.

    Args:
        make_env: Makes the environment of a given index.
        num_envs: Environments that are stepped one after another.
        env_steps: Of all environments together.
        seed: Of the actions and the first resets.
    """
    envs = [make_env(index) for index in range(num_envs)]
    asked: list[Mapping[Any, Any]] = [env.reset(seed=seed + index)[0] for index, env in enumerate(envs)]
    rounds = max(1, env_steps // num_envs)
    length = min(rounds, BLOCK)
    actions = {
        agent: draw_actions(envs[0].get_action_space(agent), length, seed + number)
        for number, agent in enumerate(envs[0].possible_agents)
    }
    agent_steps = 0
    start = time.perf_counter()
    for round_ in range(rounds):
        at = round_ % length
        for index, env in enumerate(envs):
            answers = {agent: actions[agent][at] for agent in asked[index]}
            agent_steps += len(answers)
            obs, _, terminateds, truncateds, _ = env.step(answers)
            if terminateds[ALL] or truncateds[ALL]:
                obs = env.reset()[0]
            elif len(terminateds) > 1 or len(truncateds) > 1:
                obs = {a: o for a, o in obs.items() if not (terminateds.get(a) or truncateds.get(a))}
            asked[index] = obs
    seconds = time.perf_counter() - start
    for env in envs:
        env.close()
    return Rate(rounds * num_envs / seconds, agent_steps / seconds)


def bare_turn_based(
    make_env: Callable[[int], MultiAgentEnv], num_envs: int, env_steps: int, seed: int = 0
) -> float:
    """Play `num_envs` masked games in turn, with random legal moves, and return env steps per second.

    Args:
        make_env: Makes the environment of a given index; one agent at a time, with an `"action_mask"`.
        num_envs: Environments that are stepped one after another.
        env_steps: Of all environments together.
        seed: Of the moves.
    """
    envs = [make_env(index) for index in range(num_envs)]
    asked: list[Mapping[Any, Any]] = [env.reset(seed=seed + index)[0] for index, env in enumerate(envs)]
    rounds = max(1, env_steps // num_envs)
    uniforms = np.random.default_rng(seed).random((min(rounds, BLOCK), num_envs)).tolist()
    start = time.perf_counter()
    _take_turns(envs, asked, uniforms, rounds)
    return rounds * num_envs / (time.perf_counter() - start)


def _take_turns(
    envs: list[MultiAgentEnv], asked: list[Mapping[Any, Any]], uniforms: list[list[float]], rounds: int
) -> None:
    for round_ in range(rounds):
        draws = uniforms[round_ % len(uniforms)]
        for index, env in enumerate(envs):
            ((agent, seen),) = asked[index].items()
            legal = seen["action_mask"].nonzero()[0]
            obs, _, terminateds, truncateds, _ = env.step({agent: legal[int(draws[index] * len(legal))]})
            if terminateds[ALL] or truncateds[ALL]:
                obs = env.reset()[0]
            asked[index] = obs


def bare_aec_tictactoe(num_games: int, seed: int = 0) -> float:
    """Play PettingZoo's tictactoe_v3 with random legal moves and return moves per second."""
    from pettingzoo.classic import tictactoe_v3

    env = tictactoe_v3.env()
    uniforms = np.random.default_rng(seed).random(9 * num_games).tolist()
    moves = 0
    start = time.perf_counter()
    for _ in range(num_games):
        env.reset()
        for _ in env.agent_iter():
            seen, _, terminated, truncated, _ = env.last()
            if terminated or truncated:
                env.step(None)
                continue
            legal = seen["action_mask"].nonzero()[0]
            env.step(legal[int(uniforms[moves] * len(legal))])
            moves += 1
    return moves / (time.perf_counter() - start)


def draw_actions(space: gym.Space[Any], count: int, seed: int) -> list[Any]:
    """Return `count` random elements of `space`, in the form in which `space.sample` gives them."""
    rng = np.random.default_rng(seed)
    if isinstance(space, gym.spaces.Discrete):
        return list(rng.integers(space.start, space.start + space.n, count))
    if isinstance(space, gym.spaces.Box) and space.is_bounded():
        return list(rng.uniform(space.low, space.high, (count, *space.shape)).astype(space.dtype))
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def bare_vector(
    make_env: Callable[[], gym.vector.VectorEnv[Any, Any, Any]], rounds: int, seed: int = 0
) -> float:
    """Step a vectorised gymnasium environment and return transitions per second; resets are none.

    Args:
        make_env: Makes it, in the mode in which a reset takes a step.
        rounds: Calls of `step`.
        seed: Of the actions and the first reset.
    """
    env = make_env()
    env.reset(seed=seed)
    length = min(rounds, BLOCK // 16)
    highest: Any = env.single_action_space
    actions = np.random.default_rng(seed).integers(0, highest.n, (length, env.num_envs))
    resets = 0
    start = time.perf_counter()
    for round_ in range(rounds):
        _, _, terminated, truncated, _ = env.step(actions[round_ % length])
        resets += int(np.count_nonzero(terminated | truncated))
    seconds = time.perf_counter() - start
    env.close()
    return (rounds * env.num_envs - resets) / seconds


def bare_tables(make_env: Callable[[], BaseEnv], rounds: int, seed: int = 0) -> float:
    """Poll and answer a `BaseEnv` whose agents all act at once, and return agent steps per second.

    Args:
        make_env: Makes it; its tables are not looked at.
        rounds: Polls.
        seed: Of the actions.
    """
    env = make_env()
    ready = env.poll()
    agents = len(ready.slots)
    length = min(rounds, BLOCK // 16)
    actions = np.random.default_rng(seed).integers(0, env.action_space.n, (length, agents))
    start = time.perf_counter()
    for round_ in range(rounds):
        env.send_actions(ready.slots, actions[round_ % length])
        ready = env.poll()
    seconds = time.perf_counter() - start
    env.stop()
    return rounds * agents / seconds


def bare_parallel(make_env: Callable[[], Any], num_envs: int, env_steps: int, seed: int = 0) -> float:
    """Step PettingZoo environments whose agents act at once, in turn, and return env steps per second.

    Args:
        make_env: Makes one, with discrete actions.
        num_envs: Environments that are stepped one after another.
        env_steps: Of all environments together.
        seed: Of the actions and the first resets.
    """
    envs = [make_env() for _ in range(num_envs)]
    for index, env in enumerate(envs):
        env.reset(seed=seed + index)
    rounds = max(1, env_steps // num_envs)
    length = min(rounds, BLOCK // 16)
    agents = list(envs[0].possible_agents)
    drawn = {agent: draw_actions(envs[0].action_space(agent), length * num_envs, seed) for agent in agents}
    actions = [{agent: drawn[agent][at] for agent in agents} for at in range(length * num_envs)]
    at = 0
    start = time.perf_counter()
    for _ in range(rounds):
        for env in envs:
            env.step(actions[at])
            at += 1
            if not env.agents:
                env.reset()
        at %= len(actions)
    seconds = time.perf_counter() - start
    for env in envs:
        env.close()
    return rounds * num_envs / seconds


def bare_aec(make_env: Callable[[], Any], num_envs: int, moves: int, seed: int = 0) -> float:
    """Play turn-based PettingZoo games in turn, with random legal moves, and return moves per second.

    Args:
        make_env: Makes one, with an `"action_mask"` in the observations.
        num_envs: Games that are played one after another, a move each.
        moves: Of all games together.
        seed: Of the moves and the first resets.
    """
    envs = [make_env() for _ in range(num_envs)]
    for index, env in enumerate(envs):
        env.reset(seed=seed + index)
    rounds = max(1, moves // num_envs)
    uniforms = np.random.default_rng(seed).random((min(rounds, BLOCK), num_envs)).tolist()
    start = time.perf_counter()
    for round_ in range(rounds):
        draws = uniforms[round_ % len(uniforms)]
        for index, env in enumerate(envs):
            seen = _next_turn(env)
            legal = seen["action_mask"].nonzero()[0]
            env.step(legal[int(draws[index] * len(legal))])
    return rounds * num_envs / (time.perf_counter() - start)


def _next_turn(env: Any) -> Any:
    """Return what the agent sees whose turn it is, after the turns of dead ones and the reset of a finished game."""
    while True:
        seen, _, terminated, truncated, _ = env.last()
        if not (terminated or truncated):
            return seen
        env.step(None)
        if not env.agents:
            env.reset()
