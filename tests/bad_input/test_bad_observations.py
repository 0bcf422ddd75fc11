"""An observation outside its space costs one clear line: agent, step, path, expected, got, first bad index."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from menv.algorithms import PPO
from menv.errors import ContractError
from tests.bad_input.broken_envs import GOOD, UNIT, FaultyGym, refusal, seeing
from tests.worlds import like

NESTED = gym.spaces.Dict(
    {"map": gym.spaces.Tuple([UNIT, gym.spaces.Discrete(3)]), "goal": gym.spaces.MultiDiscrete([2, 3])}
)
NESTED_GOOD = {"map": (GOOD, 1), "goal": np.array([0, 2])}


def array(*values: float, dtype: Any = np.float32) -> Any:
    return np.array(values, dtype)


STRUCTURE: dict[str, tuple[Any, gym.Space[Any], Any, list[str]]] = {
    "float64": (array(0, 1e300, 0, dtype=np.float64), UNIT, GOOD, ["float32 of", "got float64", "cannot hold"]),
    "shape": (array(0, 0), UNIT, GOOD, ["expected float32 of shape (3,)", "got shape (2,)"]),
    "a string": ("north", UNIT, GOOD, ["expected float32 of shape (3,)", "got str;"]),
    "None": (None, UNIT, GOOD, ["expected float32 of shape (3,)", "got NoneType;"]),
    "a dict": ({"left": GOOD}, UNIT, GOOD, ["expected float32 of shape (3,), got a dict with keys ['left']"]),
    "too large": (5, gym.spaces.Discrete(5), 1, ["expected an integer from 0 to 4", "got 5"]),
    "negative": (-1, gym.spaces.Discrete(5), 1, ["expected an integer from 0 to 4", "got -1"]),
    "a float": (1.5, gym.spaces.Discrete(5), 1, ["expected an integer from 0 to 4", "got float 1.5"]),
    "missing key": ({"goal": array(0, 0, dtype=np.int64)}, NESTED, NESTED_GOOD, ["missing ['map']"]),
    "extra key": ({**NESTED_GOOD, "wind": 1}, NESTED, NESTED_GOOD, ["not in the space ['wind']"]),
    "no dict": (GOOD, NESTED, NESTED_GOOD, ["expected a dict with keys ['goal', 'map']", "got"]),
    "tuple length": ({**NESTED_GOOD, "map": (GOOD,)}, NESTED, NESTED_GOOD, ["obs['map']", "expected a tuple of 2"]),
    "long tuple": (
        {**NESTED_GOOD, "map": (GOOD, 1, 1)}, NESTED, NESTED_GOOD, ["obs['map']: expected a tuple of 2 elements, got 3"]
    ),
    "deep extra key": (
        {"seen": {**NESTED_GOOD, "wind": 1}}, gym.spaces.Dict({"seen": NESTED}), {"seen": NESTED_GOOD},
        ["obs['seen']", "not in the space ['wind']"],
    ),
    "deep discrete": ({**NESTED_GOOD, "map": (GOOD, 3)}, NESTED, NESTED_GOOD, ["obs['map'][1]", "from 0 to 2, got 3"]),
    "deep float64": (
        {**NESTED_GOOD, "map": (np.full(3, 1e300), 1)}, NESTED, NESTED_GOOD, ["obs['map'][0]", "got float64", "cannot"]
    ),
    "multi": (
        {**NESTED_GOOD, "goal": np.array([0, 3])}, NESTED, NESTED_GOOD, ["obs['goal']", "3 at index 1", "outside [0,"]
    ),
}  # fmt: skip


BOUNDS: dict[str, tuple[Any, gym.Space[Any], Any, list[str]]] = {
    "above": (array(0, 1.5, 2), UNIT, GOOD, ["1.5 at index 1", "outside [-1.0, 1.0]"]),
    "below": (array(-3, 0, 0), UNIT, GOOD, ["-3.0 at index 0", "outside [-1.0, 1.0]"]),
    "nan": (array(0, 0, np.nan), UNIT, GOOD, ["nan at index 2", "outside [-1.0, 1.0]"]),
    "inf": (array(0, np.inf, 0), UNIT, GOOD, ["inf at index 1"]),
    "deep": ({**NESTED_GOOD, "map": (array(0, 0, 9), 1)}, NESTED, NESTED_GOOD, ["obs['map'][0]", "9.0 at index 2"]),
    "matrix": (
        np.array([[0, 0], [0, 7]], np.float32), gym.spaces.Box(0, 1, (2, 2), np.float32), np.zeros((2, 2), np.float32),
        ["7.0 at index (1, 1)", "outside [0.0, 1.0]"],
    ),
    "flags": (
        {"on": array(0, 2, dtype=np.int8)}, gym.spaces.Dict({"on": gym.spaces.MultiBinary(2)}),
        {"on": array(0, 1, dtype=np.int8)}, ["obs['on']: 2.0 at index 1", "outside [0.0, 1.0]"],
    ),
    "nan in an unbounded box": (
        array(0, 0, np.nan), gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), GOOD, ["nan at index 2"]
    ),
}  # fmt: skip


@pytest.mark.each_value
@pytest.mark.parametrize("when", [0, 3, 5], ids=["first", "middle", "final"])
@pytest.mark.parametrize("case", [*STRUCTURE, *BOUNDS])
def test_a_wrong_observation_names_agent_step_path_and_index(case: str, when: int) -> None:
    if (case, when) == ("None", 5):
        return  # None is what an environment gives that has no final observation
    bad, space, good, parts = {**STRUCTURE, **BOUNDS}[case]
    message = refusal(seeing(bad, space, good, when), error=ContractError)
    assert "agent 'bob'" in message
    assert "env 0" in message
    # Bounds are looked at once a fragment, where the agent's own step is known.
    step = f"env step {when}" if case in STRUCTURE else f"step {when}"
    assert ("final observation" if when == 5 else step) in message
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (np.full(3, 1e300), "got float64"),
        (np.zeros(2, np.float32), "got shape (2,)"),
        (np.zeros((3, 1), np.float32), "got shape (3, 1)"),
        (np.zeros((1, 3), np.float32), "got shape (1, 3)"),
        (array(2, 0, 0), "2.0 at index 0"),
    ],
)
def test_a_single_agent_environment_is_treated_alike(bad: Any, part: str) -> None:
    message = refusal(like(FaultyGym, see=lambda self: bad if self.at == 2 else GOOD), error=ContractError)
    assert "agent 'agent0'" in message
    assert part in message
    assert "step 2" in message


SeesTooMuch = like(FaultyGym, see=lambda self: array(2, 0, 0) if self.at == 2 else GOOD)


@pytest.mark.parametrize("env", [SeesTooMuch, seeing(array(2, 0, 0))])
def test_an_observation_outside_its_bounds_is_learned_from_with_a_wider_space_in_the_config(env: Any) -> None:
    settings = {"train_batch_size": 20, "rollout_fragment_length": 20}
    with pytest.raises(ContractError, match="observation_space"), PPO(env=env, config=settings) as algo:
        algo.train()
    wide = {"observation_space": gym.spaces.Box(-10.0, 10.0, (3,), np.float32)}
    with PPO(env=env, config={**settings, **wide}) as algo:
        assert algo.sample()["default_policy"]["obs"].max() == 2.0


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_a_single_agent_environment_without_a_last_observation_is_refused(flag: str) -> None:
    class NoLast(FaultyGym):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, _, info = super().step(action)
            return None if terminated else obs, reward, terminated and flag == "terminated", terminated, info

    message = refusal(NoLast, error=ContractError)
    assert re.match("env 0 step: .*None", message)


def test_a_huge_observation_is_not_printed() -> None:
    space = gym.spaces.Box(0.0, 1.0, (60, 60), np.float32)
    good = np.zeros((60, 60), np.float32)
    for bad in (np.full((60, 60), 1e300), np.full((60, 60), 7, np.float32), np.zeros((3, 60), np.float32)):
        assert len(refusal(seeing(bad, space, good), {"model": {"fcnet_hiddens": [4]}})) < 500


@pytest.mark.parametrize("bad", [np.zeros(2, np.float32), np.zeros(3, np.float32) + 7, {"a": 1}])
def test_compute_single_action_says_it_too(bad: Any) -> None:
    from menv.algorithms import PPO

    with PPO(env=seeing(GOOD, when=-1)) as algorithm, pytest.raises(ContractError, match="'default_policy'"):
        algorithm.compute_single_action(bad)


@pytest.mark.parametrize(("space", "path"), [
    (UNIT, "obs: "),
    (gym.spaces.Discrete(3), "obs: "),
    (gym.spaces.Dict({"a": UNIT, "b": gym.spaces.Discrete(2)}), "obs['a']: "),
])  # fmt: skip
@pytest.mark.parametrize("tensor", [torch.zeros(3, requires_grad=True), torch.zeros(3, device="meta")])
def test_a_tensor_that_numpy_cannot_read_is_named(space: gym.Space[Any], path: str, tensor: Any) -> None:
    class Simulates(FaultyGym):
        observation_space = space

        def see(self) -> Any:
            return {"a": tensor, "b": 0} if isinstance(space, gym.spaces.Dict) else tensor

    message = refusal(Simulates, error=ContractError)
    assert re.match(re.escape(f"env 0, agent 'agent0', env step 0: {path}") + ".*Tensor", message)
