"""Pipelines are edited by name; what cannot be done changes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.connectors import (
    ActionConnectorPipeline,
    AgentConnector,
    AgentConnectorDataType,
    AgentConnectorPipeline,
    ClipActionsConnector,
    ClipRewardAgentConnector,
    ConnectorContext,
    FlattenDataAgentConnector,
    FrameStackAgentConnector,
    MeanStdObservationFilterAgentConnector,
    ObsPreprocessorConnector,
    ViewRequirementAgentConnector,
    get_connector,
    register_connector,
)
from menv.connectors.connector import AgentRows
from menv.connectors.pipeline import PolicyConnectors, agent_pipeline
from menv.errors import ConfigError, ContractError, UnknownNameError
from menv.sample_batch import SampleBatch
from tests.worlds import like

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
CTX = ConnectorContext(observation_space=BOX, action_space=BOX)


def pipeline() -> AgentConnectorPipeline:
    return AgentConnectorPipeline(CTX, [ClipRewardAgentConnector(), ViewRequirementAgentConnector()])


def names(line: Any) -> list[str]:
    return [connector.name for connector in line.connectors]


class AddsOne(AgentConnector):
    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        ac_data.data[SampleBatch.NEXT_OBS] = ac_data.data[SampleBatch.NEXT_OBS] + 1
        return ac_data


def test_connectors_are_inserted_and_removed_by_name() -> None:
    line = pipeline()
    line.insert_before("ViewRequirementAgentConnector", ObsPreprocessorConnector())
    line.insert_after("ObsPreprocessorConnector", FlattenDataAgentConnector())
    line.prepend(FlattenDataAgentConnector())
    line.append(AddsOne())
    line.remove("ClipRewardAgentConnector")
    assert names(line) == [
        "FlattenDataAgentConnector",
        "ObsPreprocessorConnector",
        "FlattenDataAgentConnector",
        "ViewRequirementAgentConnector",
        "AddsOne",
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.remove("Nobody"),
        lambda line: line.insert_before("Nobody", AddsOne()),
        lambda line: line.insert_after("Nobody", AddsOne()),
        lambda line: line["Nobody"],
        lambda line: line.append(ClipActionsConnector()),
        lambda line: line.append(AddsOne),
        lambda line: line.prepend(line.connectors[0]),
        lambda line: line[0],
        lambda line: line[ClipRewardAgentConnector],
    ],
)
def test_an_impossible_change_is_named_and_leaves_the_pipeline_unchanged(
    change: Callable[[Any], Any],
) -> None:
    line = pipeline()
    before, version = names(line), line.version
    with pytest.raises(ConfigError, match="expected"):
        change(line)
    assert (names(line), line.version) == (before, version)


def test_a_state_is_unchanged_after_json() -> None:
    line = AgentConnectorPipeline(
        CTX,
        [
            ClipRewardAgentConnector(limit=2.0),
            ObsPreprocessorConnector(),
            MeanStdObservationFilterAgentConnector(clip=5.0),
            FrameStackAgentConnector(num_frames=2),
            FlattenDataAgentConnector(),
        ],
    )
    line.connectors[2].over_rows(AgentRows(np.random.default_rng(0).normal(size=(9, 3)) / 3, learning=True))
    name, params = json.loads(json.dumps(line.to_state()))
    again = get_connector(name, CTX, params)
    assert isinstance(again, AgentConnectorPipeline)
    assert again.to_state() == line.to_state()
    assert str(again) == str(line)


def test_connectors_that_json_cannot_hold_are_refused_by_name() -> None:
    class Holds(AgentConnector):
        def to_state(self) -> tuple[str, Any]:
            return "Holds", {"array": np.zeros(3)}

    with pytest.raises(ConfigError, match=r"Holds\.to_state"):
        AgentConnectorPipeline(CTX, [Holds()]).to_state()
    with pytest.raises(ContractError, match=r"AddsOne\.to_state"):
        AgentConnectorPipeline(CTX, [AddsOne()]).to_state()


def test_a_connector_that_cannot_be_copied_for_evaluation_is_named() -> None:
    class Locks(AddsOne):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    class Refuses(AddsOne):
        def __deepcopy__(self, memo: Any) -> Any:
            raise KeyError("gone")

    own = PolicyConnectors(agent_pipeline(CTX), ActionConnectorPipeline(CTX))
    assert not own.for_evaluation().agent.is_training
    own.agent.append(Locks())
    with pytest.raises(ContractError, match="Locks"):
        own.for_evaluation()
    own.agent.prepend(Refuses())
    own.agent.remove("Locks")
    with pytest.raises(ContractError, match="Refuses"):
        own.for_evaluation()


def test_a_name_that_is_not_registered_is_refused_with_a_near_one() -> None:
    with pytest.raises(UnknownNameError, match="'FrameStackAgentConnector'"):
        get_connector("FrameStackConnector", CTX)
    with pytest.raises(UnknownNameError):
        AgentConnectorPipeline.from_state(CTX, [["os.system", "true"]])


def test_a_second_registration_under_one_name_is_refused() -> None:
    register_connector("test_pipelines.AddsOne", AddsOne)
    for name in ("test_pipelines.AddsOne", "ViewRequirementAgentConnector", "FrameStackAgentConnector"):
        with pytest.raises(ConfigError, match="already"):
            register_connector(name, AddsOne)
    with pytest.raises(ConfigError, match="subclass"):
        register_connector("test_pipelines.other", dict)  # type: ignore[arg-type]


def test_training_and_evaluation_reach_every_connector() -> None:
    line = pipeline()
    line.in_eval()
    assert [connector.is_training for connector in (line, *line.connectors)] == [False] * 3
    line.in_training()
    assert [connector.is_training for connector in (line, *line.connectors)] == [True] * 3


def test_only_a_users_connectors_see_agent_by_agent() -> None:
    seen: list[int] = []

    class Looks(AgentConnector):
        def __call__(self, acd_list: list[AgentConnectorDataType]) -> list[AgentConnectorDataType]:
            seen.append(len(acd_list))
            return acd_list

    class PreprocessorOfMine(ObsPreprocessorConnector):
        def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
            seen.append(-1)
            return super().transform(ac_data)

    assert not PreprocessorOfMine(CTX).takes_rows
    line = AgentConnectorPipeline(
        CTX, [AddsOne(), Looks(), PreprocessorOfMine(), MeanStdObservationFilterAgentConnector()]
    )
    rows = AgentRows(-np.ones((4, 3), np.float32), seats=[(0, index) for index in range(4)])
    line.over_rows(rows)
    assert seen == [4, -1, -1, -1, -1]
    assert rows.obs.tolist() == np.zeros((4, 3)).tolist()


@pytest.mark.parametrize(
    "change", [lambda agents: agents[1:], lambda agents: agents[::-1], lambda agents: None]
)
def test_a_connector_must_return_the_same_agents(change: Callable[[Any], Any]) -> None:
    loses = like(AgentConnector, __call__=lambda self, acd_list: change(acd_list))
    rows = AgentRows(np.zeros((2, 3), np.float32), seats=[(0, "a"), (0, "b")])
    with pytest.raises(ContractError, match="AgentConnector"):
        AgentConnectorPipeline(CTX, [loses()]).over_rows(rows)
