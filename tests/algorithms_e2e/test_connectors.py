"""Connectors in training, in evaluation and in `compute_actions`: the same path everywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest

from menv.algorithms import DQN, PPO
from menv.connectors import (
    ActionConnector,
    ActionConnectorDataType,
    AgentConnector,
    AgentConnectorDataType,
    MeanStdObservationFilterAgentConnector,
)
from menv.sample_batch import SampleBatch
from tests.worlds import Alone, Several, like

Column = npt.NDArray[Any]
NEXT_OBS = SampleBatch.NEXT_OBS
SMALL = {"num_envs_per_worker": 3, "rollout_fragment_length": 20, "train_batch_size": 60, "seed": 5}
SPREAD = gym.spaces.Box(-1000, 1000, (2,), np.float32)


class Counts(Alone):
    """Observes its step and 100 more; the reward is the step, and episodes are cut."""

    observation_space, cut = SPREAD, True
    seen: list[Any] = []  # noqa: RUF012

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.length = 7 + getattr(config, "vector_index", 0)

    def see(self) -> Any:
        return np.array([self.at, self.at + 100], np.float32)

    def pay(self, action: Any) -> float:
        Counts.seen.append(action)
        return float(self.at)


# "b" counts ten times as fast, dies early and comes back.
Pair = like(
    Several,
    observation_space=SPREAD,
    length=9,
    shown=lambda self: "a" if self.at == 4 else "ab",
    dead=lambda self, actions: "b" if self.at == 3 else "",
    see=lambda self, agent: np.full(2, self.at * (1 if agent == "a" else 10), np.float32),
)


def filter_of(algo: Any, policy_id: str = "default_policy") -> MeanStdObservationFilterAgentConnector:
    (found,) = algo.get_policy(policy_id).agent_connectors["MeanStdObservationFilterAgentConnector"]
    assert isinstance(found, MeanStdObservationFilterAgentConnector)
    return found


def filtered(filter_: MeanStdObservationFilterAgentConnector, raw: Column) -> Column:
    shown: Column = (raw - filter_.statistics.mean) / np.sqrt(filter_.statistics.variance)
    return shown


def test_the_default_pipelines_have_the_classic_names_in_the_classic_order() -> None:
    settings = {"clip_rewards": True, "observation_filter": "MeanStdFilter", "clip_actions": True}
    with PPO(env=Counts, config={**SMALL, **settings}) as algo:
        policy: Any = algo.get_policy()
        assert str(policy.agent_connectors).split() == [
            "AgentConnectorPipeline",
            "ObsPreprocessorConnector",
            "FlattenDataAgentConnector",
            "MeanStdObservationFilterAgentConnector",
            "StateBufferConnector",
            "ViewRequirementAgentConnector",
        ]
        assert str(policy.action_connectors).split() == [
            "ActionConnectorPipeline",
            "ConvertToNumpyConnector",
            "NormalizeActionsConnector",
            "ClipActionsConnector",
            "ImmutableActionsConnector",
        ]


def test_what_is_learned_from_is_filtered_and_metrics_are_the_environments() -> None:
    with PPO(env=Counts, config={**SMALL, "observation_filter": "MeanStdFilter"}) as algo:
        result = algo.train()
        filter_ = filter_of(algo)
        # Every row that waited was counted once: 60 answered ones and the 3 that wait now.
        assert filter_.statistics.count == 63
        raw = np.arange(10)
        expected = filtered(filter_.copy(), np.column_stack([raw, raw + 100]))
        batch = algo.sample()["default_policy"]
        # The rows that waited before were filtered when they came.
        for piece in batch.split_by_episode():
            steps = piece["t"][1:]
            np.testing.assert_allclose(piece["obs"][1:], expected[steps], rtol=1e-4, atol=1e-4)
        assert result["episode_len_mean"] >= 7
        assert result["episode_reward_max"] == sum(range(1, 10))


def test_evaluation_and_compute_actions_use_the_statistics_and_change_none() -> None:
    with PPO(env=Counts, config={**SMALL, "observation_filter": "MeanStdFilter"}) as algo:
        algo.train()
        state = filter_of(algo).to_state()
        algo.evaluate()
        policy: Any = algo.get_policy()
        raw = np.array([[3, 103], [5, 105]], np.float32)
        policy.compute_actions(list(raw))
        policy.act(raw[0])
        assert filter_of(algo).to_state() == state
        algo.train()
        assert filter_of(algo).to_state() != state
        shown, _ = policy._rows(list(raw))
        np.testing.assert_allclose(shown, filtered(filter_of(algo), raw), rtol=1e-4, atol=1e-4)


def test_a_policy_that_is_not_trained_keeps_its_statistics() -> None:
    multi = {
        "policies": ["a", "b"],
        "policy_mapping_fn": lambda agent_id, episode, worker, **kw: agent_id,
        "policies_to_train": ["a"],
    }
    settings = {**SMALL, "observation_filter": "MeanStdFilter", "multiagent": multi}
    with PPO(env=Pair, config=settings) as algo:
        algo.train()
        assert (filter_of(algo, "a").statistics.count > 50, filter_of(algo, "b").statistics.count) == (
            True,
            0,
        )


def test_a_snapshot_made_as_the_page_says_filters_and_acts_as_its_learner() -> None:
    page = (Path(__file__).parents[2] / "docs/how_to/several_algorithms.md").read_text("utf-8")
    (recipe,) = re.findall(r"^\| a snapshot of a learner \| `(.*?)`", page, re.MULTILINE)
    multi = {"policies": ["main"], "policy_mapping_fn": lambda agent_id, episode, worker, **kw: "main"}
    settings = {**SMALL, "observation_filter": "MeanStdFilter", "multiagent": multi}
    with PPO(env=Counts, config=settings) as algo:
        algo.train()
        exec(recipe.replace("policy_mapping_fn=...", "policy_mapping_fn=None"), {"algo": algo})
        assert filter_of(algo, "past").to_state() == filter_of(algo, "main").to_state()
        row = np.array([7, 107], np.float32)
        given = [algo.get_policy(name).compute_actions([row], explore=False)[2] for name in ("main", "past")]
        assert given[0]
        for name, values in given[0].items():
            np.testing.assert_array_equal(values, given[1][name])
        # Weights alone leave the statistics.
        algo.train()
        kept = filter_of(algo, "past").to_state()
        algo.set_weights({"past": algo.get_weights(["main"])["main"]})
        assert filter_of(algo, "past").to_state() == kept != filter_of(algo, "main").to_state()


class Looks(AgentConnector):
    """Changes nothing, and remembers what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, Any, Any, bool]] = []
        self.resets: list[Any] = []
        self.answers: list[Any] = []

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        data = ac_data.data
        over = data[SampleBatch.TERMINATEDS] or data[SampleBatch.TRUNCATEDS]
        self.seen.append((ac_data.env_id, ac_data.agent_id, data[NEXT_OBS].tolist(), over))
        return ac_data

    def reset(self, env_id: Any) -> None:
        self.resets.append(env_id)

    def on_policy_output(self, output: ActionConnectorDataType) -> None:
        self.answers.append((output.env_id, output.agent_id, int(output.output[0])))


def test_a_users_connector_sees_each_life_from_its_first_to_its_last_observation() -> None:
    looks = Looks()
    with PPO(env=Counts, config={**SMALL, "num_envs_per_worker": 1, "rollout_fragment_length": 17}) as algo:
        algo.get_policy().agent_connectors.prepend(looks)  # type: ignore[attr-defined]
        algo.sample()
    steps = [int(obs[0]) for _, _, obs, _ in looks.seen]
    assert steps == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]
    assert [over for *_, over in looks.seen] == [step == 7 for step in steps]
    assert looks.resets == [0, 0]
    assert len(looks.answers) == 17
    assert {answer[:2] for answer in looks.answers} == {(0, "agent0")}


class OneTenth(AgentConnector):
    """A tenth of what is observed, for the opposite of the reward."""

    def transform(self, ac_data: AgentConnectorDataType) -> AgentConnectorDataType:
        ac_data.data[NEXT_OBS] = ac_data.data[NEXT_OBS] / 10
        ac_data.data[SampleBatch.REWARDS] *= -1
        return ac_data


class Doubled(ActionConnector):
    def transform(self, ac_data: ActionConnectorDataType) -> ActionConnectorDataType:
        action, states, fetches = ac_data.output
        ac_data.output = (np.array([action, 7]), states, fetches)
        return ac_data


def test_a_users_connectors_stand_between_the_environment_and_the_network_everywhere() -> None:
    Counts.seen.clear()
    with PPO(env=Counts, config={**SMALL, "evaluation_duration": 3}) as algo:
        policy: Any = algo.get_policy()
        policy.agent_connectors.prepend(OneTenth())
        policy.action_connectors.append(Doubled())
        batch = algo.sample()["default_policy"]
        np.testing.assert_allclose(batch["obs"][:, 0], batch["t"] / 10, rtol=1e-6)
        np.testing.assert_allclose(batch["new_obs"][:, 0], (batch["t"] + 1) / 10, rtol=1e-6)
        np.testing.assert_allclose(batch["rewards"], -(batch["t"] + 1.0))
        sampled = len(Counts.seen)
        result = algo.evaluate()["evaluation"]
        assert len(Counts.seen) > sampled
        assert all(action.shape == (2,) and action[1] == 7 for action in Counts.seen)
        assert result["episode_reward_mean"] > 0
        assert policy.act(np.array([5, 105], np.float32))[1] == 7
        assert [
            action[1] for action in policy.compute_actions([np.array([5, 105.0], np.float32)] * 2)[0]
        ] == [7, 7]
        algo.train()


def test_evaluations_follow_changes_and_keep_separate_connectors() -> None:
    looks = Looks()
    with PPO(env=Counts, config={**SMALL, "evaluation_duration": 3}) as algo:
        policy: Any = algo.get_policy()
        algo.evaluate()
        policy.agent_connectors.prepend(looks)
        policy.action_connectors.append(Doubled())
        Counts.seen.clear()
        algo.evaluate()
        assert len(Counts.seen) > 20
        # Rows that waited when the connector came are answered through it, too.
        assert all(np.shape(action) == (2,) for action in Counts.seen)
        assert looks.seen == []
        algo.sample()
        assert len(looks.answers) == 60
        assert len(looks.seen) > 54


# Stacked frames in training: each life's own, and a network that is as wide as they are.


def frames_of(batch: SampleBatch, key: str) -> list[list[int]]:
    return [[int(number) for number in row[::2]] for row in batch[key]]


@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_stacked_frames_are_those_of_the_life_in_rows_and_in_last_observations(algorithm: Any) -> None:
    stack = [("FrameStackAgentConnector", {"num_frames": 3})]
    with algorithm(env=Counts, config={**SMALL, "agent_connectors": stack}) as algo:
        for _ in range(2):
            batch = algo.sample()["default_policy"]
            for row, t in zip(frames_of(batch, "obs"), batch["t"].tolist(), strict=True):
                assert row == [max(t - 2, 0), max(t - 1, 0), t]
            for row, t in zip(frames_of(batch, "new_obs"), batch["t"].tolist(), strict=True):
                assert row == [max(t - 1, 0), t, t + 1]
        algo.train()
        algo.evaluate()
