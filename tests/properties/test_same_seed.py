"""The same seed gives the same trajectories, however sub-environments are batched and fragments cut."""

from __future__ import annotations

from typing import Any

import pytest

from menv import to_base_env
from menv.algorithms import PPO
from tests.contract.scripted import IRREGULAR, SOLO, TOGETHER, TURNS, Moment, Script, ScriptedEnv, SoloGym
from tests.properties.schedules import Row, same, sampler, trajectories

STEPS = 60
GOING: Script = [
    [Moment("abc"), *[Moment("abc", {"a": 1, "b": 2}), Moment("ab", {"c": 3}), Moment("bc", terminated="a")] * 3,
     Moment("abc", over="truncated")],
    [Moment("b"), Moment("ca", {"b": 4}), Moment("b", {"a": 5}), Moment("abc", over="terminated")],
]  # fmt: skip


def live(
    kind: str, script: Script, worlds: list[int], length: int, *, gym: bool = False, seed: int = 11
) -> dict[Any, list[Row]]:
    """Sample the same number of env steps from these of all sub-environments."""

    def make(index: int) -> Any:
        return (
            SoloGym(script, worlds[index], salt=True)
            if gym
            else ScriptedEnv(script, worlds[index], salt=True)
        )

    first = worlds[0]
    base_env = to_base_env(make(0), make, len(worlds), seed=seed, first_index=first)
    loop = sampler(base_env, kind, length, seed=seed, first_index=first)
    return trajectories([loop.sample() for _ in range(STEPS // length)])


def even_or_odd(agent: str) -> str:
    return "odd" if agent in "bd" else "even"


def of(world: int, lived: dict[Any, list[Row]]) -> dict[Any, list[Row]]:
    return {life: rows for life, rows in lived.items() if life[0] == world}


@pytest.mark.slow_unless("4-*-recurrent", "10-*-own")
@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["networks", "recurrent", "own"])
@pytest.mark.parametrize(("script", "gym"), [(GOING, False), (TURNS, False), (TOGETHER, False), (SOLO, True)])
@pytest.mark.parametrize("length", [1, 4, 10, 60])
def test_a_sub_environment_plays_the_same_alone_and_among_others(
    kind: str, script: Script, gym: bool, length: int
) -> None:
    together = live(kind, script, [0, 1, 2, 3, 4], length, gym=gym)
    alone = live(kind, script, [3], 5, gym=gym)
    assert alone
    same(of(3, together), alone)


@pytest.mark.parametrize("kind", ["networks", "recurrent", "own"])
def test_steps_without_a_waiting_agent_change_nothing_either(kind: str) -> None:
    together, alone = live(kind, IRREGULAR, [0, 1, 2], 3), live(kind, IRREGULAR, [1], 4)
    compared = 0
    for life, rows in alone.items():
        other = together.get(life, [])
        shorter = min(len(rows), len(other))
        assert rows[:shorter] == other[:shorter]
        compared += shorter
    assert compared > 20


@pytest.mark.parametrize("inference", ["onnx", "torch"])
def test_an_algorithm_samples_the_same_whatever_the_number_of_envs_and_the_fragment_length(
    inference: str,
) -> None:
    def lived(num_envs: int, length: int) -> dict[Any, list[Row]]:
        config = {
            "seed": 3, "num_envs_per_worker": num_envs, "rollout_fragment_length": length, "inference": inference,
            "multiagent": {"policies": ["even", "odd"], "policy_mapping_fn": even_or_odd},
        }  # fmt: skip
        env = lambda context: ScriptedEnv(GOING, context.vector_index, salt=True)  # noqa: E731
        with PPO(env=env, config=config) as algorithm:
            return of(0, trajectories([algorithm.sample() for _ in range(STEPS // length)]))

    few, many = lived(1, 4), lived(6, 15)
    assert few
    same(few, many)


def test_onnx_and_torch_draw_the_same_actions() -> None:
    def actions(inference: str) -> Any:
        config = {"seed": 3, "num_envs_per_worker": 3, "rollout_fragment_length": 40, "inference": inference}
        with PPO(env="CartPole-v1", config=config) as algorithm:
            return algorithm.sample()["default_policy"]["actions"].tolist()

    assert actions("onnx") == actions("torch")
