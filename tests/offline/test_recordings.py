"""What is recorded is what the environment gave, files keep it, and reading it gives the batches that were sampled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv import ConfigError, ContractError
from menv.algorithms import DQN, PPO
from menv.base_env import ExternalSteps
from menv.offline import (
    RecordCallbacks,
    RecordedEpisode,
    RecordedTrajectory,
    read_episodes,
    record,
    write_episodes,
)
from tests.offline.worlds import SPACES, Comings


def plain(value: Any) -> Any:
    """Return nested values as lists, with the types of arrays."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim):
        return [plain(part) for part in value]
    return np.asarray(value).tolist()


def shown(episode: RecordedEpisode) -> Any:
    """Return all that an episode says, except its name."""
    return [
        episode.seed, episode.env, episode.env_steps, dict(episode.unclaimed),
        [
            [
                one.agent_id, one.policy_id, one.observation_space, one.action_space,
                *(plain(part) for part in (one.steps.obs, one.steps.actions, one.steps.rewards, one.steps.env_t)),
                one.steps.terminated, one.steps.truncated,
            ]
            for one in episode.trajectories
        ],
    ]  # fmt: skip


@st.composite
def episodes(draw: st.DrawFn) -> RecordedEpisode:
    """Return an episode of agents that come and go."""
    found = []
    for agent in draw(st.lists(st.sampled_from(sorted(SPACES)), min_size=1, max_size=5)):
        obs_space, action_space = SPACES[agent]
        for space in SPACES[agent]:
            space.seed(draw(st.integers(0, 1000)))
        count, first = draw(st.integers(0, 4)), draw(st.integers(0, 5))
        obs: list[Any] = [obs_space.sample() for _ in range(count + 1)]
        if count and draw(st.booleans()):
            obs[-1] = None
        rewards = draw(st.lists(st.floats(-1e6, 1e6), min_size=count, max_size=count))
        flags = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
        actions = [action_space.sample() for _ in range(count)]
        steps = ExternalSteps(
            obs, actions, np.array(rewards), *flags, env_t=np.arange(first, first + count + 1)
        )
        found.append(
            RecordedTrajectory(agent, steps, obs_space, action_space, draw(st.sampled_from([None, "p"])))
        )
    unclaimed: dict[Any, float] = draw(
        st.dictionaries(st.sampled_from(["a", "d"]), st.floats(1, 9), max_size=2)
    )
    return RecordedEpisode(found, draw(st.none() | st.integers(0, 2**40)), "world", 99, unclaimed)


@given(some=st.lists(episodes(), min_size=1, max_size=3))
@settings(max_examples=10, deadline=None)
def test_files_return_what_was_written(
    some: list[RecordedEpisode], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_episodes(tmp_path_factory.mktemp("some") / "some.parquet", some)
    assert [shown(one) for one in read_episodes(path)] == [shown(one) for one in some]


def test_batches_of_a_recording_are_those_that_were_sampled(tmp_path: Path) -> None:
    """Every trajectory has the same observations, actions, rewards, ends and successors as when it was sampled."""
    shared: dict[str, Any] = {
        "train_batch_size": 120, "rollout_fragment_length": 120, "batch_mode": "complete_episodes", "seed": 3,
        "multiagent": {"policies": list(SPACES), "policy_mapping_fn": lambda agent: agent},
    }  # fmt: skip
    batches = []
    for _ in range(2):
        # The file of the first run stays.
        callbacks = RecordCallbacks(tmp_path / "run.parquet")
        with PPO(env=Comings, config={**shared, "callbacks": callbacks}) as algo:
            batches.append(algo.sample())
    paths = [tmp_path / f"run-0-0000{number}.parquet" for number in (1, 2)]
    assert sorted(tmp_path.iterdir()) == paths
    sampled, written = batches[0], list(read_episodes(paths[0]))
    assert {one.policy_id == one.agent_id for episode in written for one in episode.trajectories} == {True}
    rewards = sum(float(one.steps.rewards.sum()) for episode in written for one in episode.trajectories)
    assert rewards == sum(float(batch["rewards"].sum()) for batch in sampled.policy_batches.values())
    with PPO(env=Comings, config={**shared, "input": str(paths[0])}) as algo:
        read = algo.sample()
    assert read.env_steps() == sampled.env_steps()
    for agent in SPACES:
        assert chunks(read[agent]) == chunks(sampled[agent])


def chunks(batch: Any) -> list[Any]:
    """Return the columns of each trajectory, in an order of their own."""
    names = ("obs", "actions", "rewards", "terminateds", "truncateds", "new_obs")
    return sorted([one[name].tolist() for name in names] for one in batch.split_by_episode())


def changed(**values: Any) -> Callable[[Any], Any]:
    """Return a function that changes values of the first row of a recording."""
    return lambda table: pa.Table.from_pylist([table.to_pylist()[0] | values], table.schema)


def with_header(old: bytes, new: bytes) -> Callable[[Any], Any]:
    """Return a function that changes the header of a recording."""
    return lambda table: table.replace_schema_metadata(
        {name: value.replace(old, new) for name, value in table.schema.metadata.items()}
    )


def with_texts(table: Any) -> Any:
    """Return the recording with texts instead of rewards."""
    place, header = table.schema.get_field_index("reward"), table.schema.metadata
    return table.set_column(place, "reward", pa.array(["x"] * len(table))).replace_schema_metadata(header)


REFUSED: dict[str, tuple[Any, str]] = {
    "another Parquet file": (lambda table: table.replace_schema_metadata({}), "bad.parquet: .*header"),
    "a column less": (lambda table: table.drop_columns(["reward"]), "bad.parquet: .*reward"),
    "another type": (with_texts, "bad.parquet: .*string"),
    "a newer version": (with_header(b'"menv_episodes": 1', b'"menv_episodes": 2'), "bad.parquet: .*version 2"),
    "a damaged header": (with_header(b'"box"', b'"boy"'), "bad.parquet: .*header"),
    "a reward without end": (changed(reward=[float("nan")]), "bad.parquet: .*reward"),
    "an unclaimed reward without end": (changed(unclaimed='[["agent0", NaN]]'), "bad.parquet: .*reward"),
    "deep JSON": (changed(unclaimed="[" * 200_000), "bad.parquet: .*recursion"),
    "another agent": (changed(agent="b"), r"episode 0: .*'b'"),
    "an action outside": (changed(reward=[1], action=[7], obs=[[0] * 4], t=[0, 1]), r"episode 0, .*got 7"),
    "half a trajectory": (changed(reward=[1]), "episode 0: .* 1 rewards"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_files_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    record(lambda obs: 0, "CartPole-v1", good, episodes=1)
    pq.write_table(change(pq.read_table(good)), bad)
    assert_refused(str(bad), message)


def test_other_spaces_and_missing_or_strange_files_are_refused(tmp_path: Path) -> None:
    record(lambda obs: 0, "Acrobot-v1", tmp_path / "acrobot.parquet", episodes=1)
    (tmp_path / "text.parquet").write_text("no parquet")
    assert_refused(f"{tmp_path}/acrobot.parquet", r"'agent0' is Box\(.*\(6,\).*Box\(.*\(4,\)")
    assert_refused(f"{tmp_path}/text.parquet", r"text\.parquet: ")
    assert_refused(f"{tmp_path}/none/*.parquet", r"none/\*\.parquet")


def assert_refused(pattern: str, message: str) -> None:
    with (
        pytest.raises((ConfigError, ContractError), match=message) as refused,
        DQN(env="CartPole-v1", config={"input": pattern}) as algo,
    ):
        algo.sample()
    assert "\n" not in str(refused.value)


def test_recorded_rows_are_added_to_sampled_ones_by_their_share(tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    record(lambda obs: 0, "CartPole-v1", path, episodes=4)
    config = {"input": {"sampler": 0.4, str(path): 0.6}, "train_batch_size": 200, "seed": 0}
    with PPO(env="CartPole-v1", config=config) as algo:
        result = algo.train()
        batches = [algo.sample() for _ in range(5)]
    assert result["num_env_steps_sampled"] == 200
    assert result["info"]["learner"]["default_policy"]["learner_stats"]["bc_loss"] > 0
    foreign = np.concatenate([batch["default_policy"]["off_policy"] for batch in batches])
    assert foreign.mean() == pytest.approx(0.6, abs=0.05)
    assert {batch.env_steps() for batch in batches} == {200}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "shares of nothing else": ({"input": {"sampler": 1.0}}, "input is {'sampler': 1.0}"),
    "a share of 0": ({"input": {"sampler": 1.0, "x": 0}}, "input is {'sampler': 1.0, 'x': 0}"),
    "a recurrent policy": ({"bc_weight": 1, "model": {"use_lstm": True}}, "bc_weight .*use_lstm"),
    "recordings for a recurrent policy": ({"input": "x", "model": {"use_lstm": True}}, "use_lstm .*DQN"),
    "a weight of 0": ({"input": "x", "bc_weight": 0.0}, "bc_weight is 0"),
    "a weight of 0 beside the sampler": ({"input": {"sampler": 1.0, "x": 1.0}, "bc_weight": 0}, "bc_weight is 0"),
    "a schedule of zeros": ({"input": "x", "bc_weight_schedule": [[0, 0], [9, 0]]}, "bc_weight is 0"),
    "a policy's own weight of 0": (
        {"input": "x", "multiagent": {"policies": {"one": (None, None, None, {"bc_weight": 0})}}},
        r"policies\['one'\].config: .*bc_weight is 0",
    ),
    "self-play": ({"input": "x", "self_play": True}, "self_play: "),
    "a falling weight": ({"bc_weight_schedule": [[0, 1], [9, -1]]}, r"bc_weight_schedule .*\[9, -1\]"),
    "an observation_fn": ({"input": "x", "multiagent": {"observation_fn": lambda *given: given[0]}}, "observation_fn:"),
    "workers": ({"input": "x", "num_workers": 2}, "num_workers: 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_settings_that_recordings_do_not_go_with_are_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record(lambda obs: 0, "CartPole-v1", "x.parquet", episodes=1)
    config, message = WRONG[case]
    if config.get("input") == "x":
        config = {**config, "input": "x.parquet"}
    with pytest.raises(ConfigError, match=message):
        PPO(env="CartPole-v1", config=config)


def test_another_suffix_is_refused_before_episodes_are_played(tmp_path: Path) -> None:
    played: list[Any] = []
    with pytest.raises(ConfigError, match=r"games\.csv"):
        record(played.append, "CartPole-v1", tmp_path / "games.csv", episodes=1)
    with pytest.raises(ConfigError, match="RecordCallbacks"):
        RecordCallbacks(tmp_path / "games.csv")
    assert played == []
