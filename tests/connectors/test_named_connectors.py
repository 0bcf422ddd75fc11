"""Each named connector by itself, for one agent and for whole batches."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.connectors import (
    ActionConnectorDataType,
    AgentConnectorDataType,
    AgentConnectorsOutput,
    ClipActionsConnector,
    ClipRewardAgentConnector,
    ConnectorContext,
    FlattenDataAgentConnector,
    FrameStackAgentConnector,
    NormalizeActionsConnector,
    ObsPreprocessorConnector,
    StateBufferConnector,
    ViewRequirement,
    ViewRequirementAgentConnector,
)
from menv.connectors.connector import AgentRows
from menv.errors import ConfigError, ContractError
from menv.sample_batch import SampleBatch
from menv.spaces import OutsideSpaceError

spaces = gym.spaces
OBS, NEXT_OBS, REWARDS = SampleBatch.OBS, SampleBatch.NEXT_OBS, SampleBatch.REWARDS


def one(connector: Any, **data: Any) -> Any:
    (out,) = connector([AgentConnectorDataType("env", "agent", data)])
    return out.data


def acted(connector: Any, action: Any) -> Any:
    return connector(ActionConnectorDataType("env", "agent", {}, (action, [], {}))).output[0]


def test_rewards_are_clipped_where_there_are_any() -> None:
    assert one(ClipRewardAgentConnector(sign=True), rewards=-5.8) == {"rewards": -1.0}
    assert one(ClipRewardAgentConnector(limit=2.0), rewards=5.8) == {"rewards": 2.0}
    assert one(ClipRewardAgentConnector(limit=2.0), rewards=-1.5) == {"rewards": -1.5}
    assert one(ClipRewardAgentConnector(limit=2.0), obs=1) == {"obs": 1}
    with pytest.raises(ConfigError, match="sign=True, limit=1"):
        ClipRewardAgentConnector(sign=True, limit=1)


def test_nested_observations_become_what_the_network_reads() -> None:
    space = spaces.Dict(
        {
            "a": spaces.Box(0, 1, (2,), np.float32),
            "b": spaces.MultiDiscrete([2, 3]),
            "c": spaces.Discrete(2, start=5),
        }
    )
    connector = ObsPreprocessorConnector(ConnectorContext(observation_space=space))
    raw = {"a": np.array([0.5, 0], np.float32), "b": np.array([1, 0]), "c": np.int64(6)}
    assert one(connector, new_obs=raw)[NEXT_OBS].tolist() == [0.5, 0, 0, 1, 1, 0, 0, 0, 1]
    with pytest.raises(OutsideSpaceError):
        one(connector, new_obs={**raw, "a": np.array([7, 0], np.float32)})


def test_nested_columns_are_flattened_and_infos_are_not() -> None:
    data = {
        NEXT_OBS: {"sensor2": np.array([8.8]), "sensor1": np.array([[1, 1], [2, 2]])},
        REWARDS: 5.8,
        SampleBatch.INFOS: {"x": [1, 2]},
    }
    out = one(FlattenDataAgentConnector(), **data)
    assert out[NEXT_OBS].tolist() == [1, 1, 2, 2, 8.8]
    assert (out[REWARDS], out[SampleBatch.INFOS]) == (5.8, {"x": [1, 2]})


def test_the_last_answer_comes_with_the_next_observation_until_the_life_ends() -> None:
    ctx = ConnectorContext(action_space=spaces.Box(-1, 1, (3,)), initial_states=[np.zeros(2)])
    buffer = StateBufferConnector(ctx)
    assert one(buffer, new_obs=1)[SampleBatch.ACTIONS].tolist() == [0, 0, 0]
    answer = ActionConnectorDataType("env", "agent", {}, ([1, 2, 3], [np.ones(2)], {"logp": 0.5}))
    buffer.on_policy_output(answer)
    out = one(buffer, new_obs=1)
    assert (out[SampleBatch.ACTIONS], out["state_out_0"].tolist(), out["logp"]) == ([1, 2, 3], [1, 1], 0.5)
    assert one(buffer, new_obs=1, terminateds=True)[SampleBatch.ACTIONS] == [1, 2, 3]
    assert one(buffer, new_obs=1)[SampleBatch.ACTIONS].tolist() == [0, 0, 0]
    buffer.on_policy_output(answer)
    buffer.reset("another")
    assert one(buffer, new_obs=1)[SampleBatch.ACTIONS] == [1, 2, 3]
    buffer.reset("env")
    assert one(buffer, new_obs=1)[SampleBatch.ACTIONS].tolist() == [0, 0, 0]


def test_the_models_input_has_one_row_of_what_is_required() -> None:
    views = {
        "obs": ViewRequirement(),
        "prev_obs": ViewRequirement("obs", shift=-1),
        "prev_actions": ViewRequirement("actions", shift=-1),
        "later": ViewRequirement("rewards", used_for_compute_actions=False),
    }
    connector = ViewRequirementAgentConnector(ConnectorContext(view_requirements=views))
    shown = []
    for step in range(3):
        out = one(connector, new_obs=np.array([step]), actions=np.int64(step * 10))
        assert isinstance(out, AgentConnectorsOutput)
        assert out.raw_dict[NEXT_OBS] == step
        shown.append({name: value.tolist() for name, value in out.sample_batch.items()})
    assert shown == [
        {"obs": [[0]], "prev_obs": [[0]], "prev_actions": [0]},
        {"obs": [[1]], "prev_obs": [[0]], "prev_actions": [10]},
        {"obs": [[2]], "prev_obs": [[1]], "prev_actions": [20]},
    ]
    connector.reset("env")
    assert one(connector, new_obs=np.array([7]), actions=0).sample_batch["prev_obs"].tolist() == [[0]]


def test_actions_are_scaled_and_clipped_into_their_bounds() -> None:
    ctx = ConnectorContext(
        action_space=spaces.Tuple(
            [spaces.Box(0, 6, (1,)), spaces.Discrete(3), spaces.Box(2, 9, (1,), np.int32)]
        )
    )
    half, choice, whole = acted(NormalizeActionsConnector(ctx), (np.array([0.5]), 2, np.array([1])))
    assert (half.tolist(), choice, whole.tolist()) == ([4.5], 2, [3])
    clipped, choice, _ = acted(ClipActionsConnector(ctx), (np.array([8.8]), 2, np.array([3])))
    assert (clipped.tolist(), choice) == ([6.0], 2)


def test_frames_are_stacked_the_oldest_first_and_again_in_each_life() -> None:
    stack = FrameStackAgentConnector(ConnectorContext(observation_space=spaces.Box(0, 9, (1,))), 3)
    shown = [
        one(stack, new_obs=np.array([step]), terminateds=step == 3)[NEXT_OBS].tolist() for step in range(5)
    ]
    assert shown == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [4, 4, 4]]


def test_images_are_stacked_by_their_channels() -> None:
    space = spaces.Box(0, 255, (2, 2, 1), np.uint8)
    stack = FrameStackAgentConnector(ConnectorContext(observation_space=space), 2)
    for value in (1, 2):
        rows = AgentRows(np.full((1, 4), value, np.uint8), slots=np.array([0]))
        stack.over_rows(rows)
    assert rows.obs.reshape(2, 2, 2).tolist() == [[[1, 2], [1, 2]], [[1, 2], [1, 2]]]
    stacked, width = stack.space(space, 4)
    assert stacked == spaces.Box(0, 255, (2, 2, 2), np.uint8)
    assert width == 8


def test_a_view_over_several_steps_stacks_them_with_the_latest_last() -> None:
    views = {
        "obs": ViewRequirement(shift="-2:0"),
        "prev_actions": ViewRequirement("actions", spaces.Discrete(90), [-2, -1], used_for_training=False),
        "new_obs": ViewRequirement("obs", shift=1, used_for_compute_actions=False),
    }
    connector = ViewRequirementAgentConnector(ConnectorContext(view_requirements=views))
    shown = []
    for step in range(1, 4):
        out = one(connector, new_obs=np.array([step]), actions=np.int64(step * 10))
        shown.append({name: value.tolist() for name, value in out.sample_batch.items()})
    assert shown == [
        {"obs": [[[0], [0], [1]]], "prev_actions": [[0, 10]]},
        {"obs": [[[0], [1], [2]]], "prev_actions": [[10, 20]]},
        {"obs": [[[1], [2], [3]]], "prev_actions": [[20, 30]]},
    ]


@pytest.mark.parametrize(
    "shift", ["", "2", "-1:-3", "a:b", "-2:0:1", 1.5, True, None, [], ["-1"], {}, 1, "-1:1", [0, 3]]
)
def test_a_shift_into_the_future_is_refused(shift: Any) -> None:
    with pytest.raises(ConfigError, match="ViewRequirement"):
        ViewRequirement(shift=shift)


def test_without_requirements_a_model_is_shown_observation_and_states() -> None:
    out = one(ViewRequirementAgentConnector(), new_obs=np.array([4.0]), state_out_0=np.ones(2))
    assert {name: value.tolist() for name, value in out.sample_batch.items()} == {
        "obs": [[4.0]],
        "state_in_0": [[1.0, 1.0]],
    }
    with pytest.raises(ContractError, match="new_obs"):
        one(ViewRequirementAgentConnector(), obs=1)
