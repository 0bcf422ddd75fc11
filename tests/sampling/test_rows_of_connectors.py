"""What users' connectors return becomes rows of the network's own type, by every way to it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import local_policy_inference
from menv.algorithms import PPO
from menv.connectors import AgentConnector, AgentConnectorDataType, register_connector
from menv.errors import ContractError
from menv.sample_batch import SampleBatch
from tests.worlds import Alone

PIXELS = gym.spaces.Box(0, 255, (4, 4, 1), np.uint8)
NUMBERS = gym.spaces.Box(-1, 1, (3,), np.float32)


class Seen(Alone):
    length = 5

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.observation_space = context["space"]

    def see(self) -> Any:
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        return super().reset(seed=seed)


class Scaled(AgentConnector):
    """Arithmetic of users, which ends with numbers of any type."""

    factor: Any = 0.5
    dtype: Any = np.float64

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        obs = np.asarray(ac_data.data[SampleBatch.NEXT_OBS], np.float64) * self.factor
        ac_data.data[SampleBatch.NEXT_OBS] = obs.astype(self.dtype)
        return ac_data

    def to_state(self) -> tuple[str, Any]:
        return type(self).__name__, {}

    @classmethod
    def from_state(cls, ctx: Any, params: Any) -> Scaled:
        return cls(ctx)


class ScaledToIntegers(Scaled):
    factor, dtype = 100, np.int64


class ScaledAndTold(Scaled):
    factor, dtype = 1 / 255, np.float32

    def space(self, space: gym.Space[Any], width: int) -> tuple[gym.Space[Any], int]:
        return gym.spaces.Box(0, 1, (width,), np.float32), width


KINDS = {kind.__name__: kind for kind in (Scaled, ScaledToIntegers, ScaledAndTold)}
for name, connector_class in KINDS.items():
    register_connector(name, connector_class)


def algorithm(space: gym.Space[Any], connector: str) -> PPO:
    config = {
        "env_config": {"space": space}, "agent_connectors": [connector], "explore": False, "seed": 0,
        "train_batch_size": 5, "model": {"conv_filters": []},
    }  # fmt: skip
    return PPO(env=Seen, config=config)


@pytest.mark.parametrize(
    ("space", "connector"), [(NUMBERS, "Scaled"), (NUMBERS, "ScaledToIntegers"), (PIXELS, "ScaledAndTold")]
)
def test_what_a_connector_returns_is_the_same_row_in_training_and_by_hand(
    space: gym.Space[Any], connector: str
) -> None:
    algo = algorithm(space, connector)
    policy: Any = algo.get_policy()
    sampled = algo.sample()["default_policy"][SampleBatch.OBS]
    seen: list[Any] = []
    decide = policy.networks.backend.decide

    def watched(rows: Any, *more: Any) -> Any:
        seen.append(rows.copy())
        return decide(rows, *more)

    policy.networks.backend.decide = watched
    one: Any = KINDS[connector]
    raw = np.ones(space.shape or (), space.dtype)
    local_policy_inference(policy, "env", "agent", raw, explore=False)
    policy.act(raw)
    expected = (raw.reshape(-1) * np.float64(one.factor)).astype(one.dtype).astype(np.float32)
    assert [rows.dtype for rows in (*seen, sampled)] == [np.float32] * 3
    assert all(np.array_equal(rows[0], expected) for rows in seen)


def test_bytes_that_a_connector_makes_fractions_of_are_refused_instead_of_cut_off() -> None:
    algo = algorithm(PIXELS, "Scaled")
    with pytest.raises(ContractError, match="connectors"):
        algo.sample()
    odd = np.full(PIXELS.shape, 3, np.uint8)
    for ask in (algo.get_policy().act, lambda obs: local_policy_inference(algo.get_policy(), 0, 0, obs)):
        with pytest.raises(ContractError, match=r"1\.5"):
            ask(odd)
