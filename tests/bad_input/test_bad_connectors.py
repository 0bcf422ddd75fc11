"""Connectors of users that return something else than what came in, changed, are refused by name."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from menv.algorithms import PPO
from menv.connectors import (
    ActionConnector,
    ActionConnectorDataType,
    AgentConnector,
    AgentConnectorDataType,
    ConnectorContext,
)
from menv.errors import ContractError
from tests.algorithms_e2e.comings import Comings


class Puts(AgentConnector):
    """Puts something in the place of rewards or observations."""

    place, value = "rewards", cast(Any, 2)

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        ac_data.data[self.place] = self.value
        return ac_data


class Only(AgentConnector):
    """Returns the observation and forgets the rest."""

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        new_obs = {"new_obs": ac_data.data["new_obs"]}
        return AgentConnectorDataType(ac_data.env_id, ac_data.agent_id, new_obs)


class WithoutMask(AgentConnector):
    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        del ac_data.data["action_mask"]
        return ac_data


class Output(ActionConnector):
    """Puts something in the place of an answer."""

    output: Any = None

    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        ac_data.output = self.output
        return ac_data


def built(**world: Any) -> tuple[PPO, Any, ConnectorContext]:
    algo = PPO(env=Comings, config={"env_config": world, "train_batch_size": 20, "seed": 1})
    policy: Any = algo.get_policy()
    return algo, policy, ConnectorContext.from_policy(policy)


@pytest.mark.parametrize(("kind", "place"), [(Only, "prepend"), (Only, "append"), (WithoutMask, "append")])
def test_a_connector_that_loses_rewards_or_masks_is_refused(kind: Any, place: str) -> None:
    algo, policy, ctx = built(mask=kind is WithoutMask)
    getattr(policy.agent_connectors, place)(kind(ctx))
    with pytest.raises(ContractError, match=kind.__name__):
        algo.sample()


@pytest.mark.parametrize("place", ["prepend", "append"])
@pytest.mark.parametrize("obs", [
    np.zeros(7, np.float32), None, "abc", np.array([0, np.nan, 0, 0], np.float32), np.full(4, np.inf, np.float32),
], ids=["shape", "None", "text", "nan", "inf"])  # fmt: skip
def test_invalid_observations_are_blamed_on_the_connector_that_made_them(obs: Any, place: str) -> None:
    algo, policy, ctx = built()
    wrong = Puts(ctx)
    wrong.place, wrong.value = "new_obs", obs
    getattr(policy.agent_connectors, place)(wrong)
    for ask in (algo.sample, lambda: policy.act(np.zeros(4, np.float32))):
        with pytest.raises(ContractError, match="Puts"):
            ask()


@pytest.mark.parametrize("reward", [
    "1.5", None, float("nan"), np.float32("inf"), np.ones(2), [[1.0], [1.0, 2.0]],
], ids=str)  # fmt: skip
def test_rewards_that_are_not_finite_are_refused(reward: Any) -> None:
    algo, policy, ctx = built()
    wrong = Puts(ctx)
    wrong.value = reward
    policy.agent_connectors.prepend(wrong)
    with pytest.raises(ContractError, match="Puts"):
        algo.sample()


@pytest.mark.parametrize("output", [None, 1, (), (1,), (1, []), np.int64(1)], ids=repr)
def test_what_an_action_connector_makes_of_an_answer_is_still_one(output: Any) -> None:
    algo, policy, ctx = built()
    wrong = Output(ctx)
    wrong.output = output
    policy.action_connectors.append(wrong)
    for ask in (algo.sample, lambda: policy.act(np.zeros(4, np.float32))):
        with pytest.raises(ContractError, match="Output"):
            ask()
