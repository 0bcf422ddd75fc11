"""Episodes come out of messages with their columns checked, whole or in chunks, of one agent or of several."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from menv.serving.episodes import WireEpisode, read_episode
from menv.serving.protocol import BadMessageError, ErrorCode, WireFormat, to_raw
from menv.serving.value_readers import reader_of
from tests.serving.corpus import EPISODE, RICH, TOGETHER, one_agent, several_agents
from tests.serving.spaces import same, spaces

S = gym.spaces
J, M = WireFormat
BOTH = pytest.mark.parametrize("dialect", WireFormat)


def read(fields: Any, dialect: WireFormat, spaces_of: Any = one_agent) -> WireEpisode:
    return read_episode(to_raw(fields, dialect), spaces_of, dialect)


def refused(fields: Any, dialect: WireFormat, spaces_of: Any = one_agent) -> BadMessageError:
    with pytest.raises(BadMessageError) as caught:
        read(fields, dialect, spaces_of)
    return caught.value


@BOTH
def test_an_episode_with_all_its_columns_is_read(dialect: WireFormat) -> None:
    found = read(RICH, dialect)
    assert (found.id, found.t, found.weights_seq_no) == ("e-1", 7, 3)
    assert (found.terminated, found.truncated, found.steps, found.agents) == (True, False, 2, None)
    assert same(found.obs, np.array(EPISODE["obs"], np.float32))
    assert same(found.actions, np.array([0, 1]))
    assert same(found.rewards, np.array([1.0, -2.0]))
    assert same(found.logp, np.array([-0.5, -0.25], np.float32))
    assert same(found.dist_inputs, np.array([[0.5, 1.5], [2, 3]], np.float32))
    assert same(found.state_in, np.array([[0], [1]], np.float32))
    assert same(found.env_t, np.array([0, 3, 4]))


@BOTH
def test_an_episode_of_the_first_clients_has_no_more_than_five_fields(dialect: WireFormat) -> None:
    found = read(EPISODE, dialect)
    assert (found.id, found.t, found.weights_seq_no) == (None, 0, None)
    assert (found.logp, found.dist_inputs, found.state_in) == (None, None, None)
    nothing = dict.fromkeys(
        ("id", "t", "weights_seq_no", "action_logp", "action_dist_inputs", "state_in", "infos")
    )
    again = read({**EPISODE, **nothing}, dialect)
    assert (again.id, again.t, again.logp) == (None, 0, None)


@BOTH
def test_an_episode_without_a_step_is_legal(dialect: WireFormat) -> None:
    empty = {**EPISODE, "obs": EPISODE["obs"][:1], "actions": [], "rewards": []}
    found = read({**empty, "action_logp": [], "action_dist_inputs": [], "state_in": []}, dialect)
    assert found.steps == 0
    assert len(found.obs) == 1
    assert found.logp is not None
    assert found.logp.shape == (0,)
    assert found.dist_inputs is not None
    assert found.dist_inputs.shape == (0, 0)


@BOTH
def test_log_probabilities_of_dimensions_are_added_up(dialect: WireFormat) -> None:
    for logp in ([[-0.5, -1], [0.25, -0.5]], np.array([[-0.5, -1], [0.25, -0.5]], np.float32)):
        assert same(read({**EPISODE, "action_logp": logp}, dialect).logp, np.array([-1.5, -0.25], np.float32))
    flat = np.array([-1.5, -0.25])
    assert same(read({**EPISODE, "action_logp": flat}, dialect).logp, np.array([-1.5, -0.25], np.float32))


@BOTH
@pytest.mark.parametrize(
    ("obs", "actions", "rewards"), [(2, 2, 2), (3, 1, 2), (3, 2, 1), (4, 2, 2), (0, 0, 0)]
)
def test_lengths_that_do_not_fit_are_all_told(
    dialect: WireFormat, obs: int, actions: int, rewards: int
) -> None:
    error = refused(
        {**EPISODE, "obs": [[0.0] * 4] * obs, "actions": [0] * actions, "rewards": [0] * rewards}, dialect
    )
    assert error.code is ErrorCode.WRONG_LENGTH
    assert (
        f"{obs} obs, {actions} actions and {rewards} rewards, expected as many rewards as actions"
        in error.text
    )


@BOTH
@pytest.mark.parametrize("name", ["action_logp", "action_dist_inputs", "state_in"])
def test_every_further_column_has_a_row_for_each_action(dialect: WireFormat, name: str) -> None:
    for rows in ([], [[1.0]], [[1.0]] * 3, np.zeros((3, 1), np.float32), np.zeros((2, 1, 1), np.float32)):
        error = refused({**EPISODE, name: rows}, dialect)
        assert error.code in (ErrorCode.WRONG_LENGTH, ErrorCode.WRONG_TYPE)
        assert name in error.text
    ragged = refused({**EPISODE, name: [[1.0], [1.0, 2.0]]}, dialect)
    assert ragged.text == f"episode.{name}: got rows of several lengths, expected one length"
    assert refused({**EPISODE, name: [[1e39], [0]]}, dialect).code is ErrorCode.OUT_OF_RANGE
    assert refused({**EPISODE, name: [[True], [0]]}, dialect).code is ErrorCode.WRONG_TYPE


@BOTH
def test_env_steps_of_observations_are_integers_that_do_not_fall(dialect: WireFormat) -> None:
    for good in ([0, 0, 2**31 - 1], np.array([1, 2, 2], np.uint8), np.array([1, 2, 5], np.int64)):
        assert same(read({**EPISODE, "env_t": good}, dialect).env_t, np.array(good, np.int64))
    for wrong, code in (
        ([0, 1], ErrorCode.WRONG_LENGTH),
        (np.zeros((3, 1), np.int64), ErrorCode.WRONG_LENGTH),
        ([0, 2, 1], ErrorCode.OUT_OF_RANGE),
        ([-1, 0, 1], ErrorCode.OUT_OF_RANGE),
        ([0, 1, 2**31], ErrorCode.OUT_OF_RANGE),
        ([0.5, 1, 2], ErrorCode.WRONG_TYPE),
        (np.array([0, 1, 2**63], np.uint64), ErrorCode.OUT_OF_RANGE),
        (np.array([0.5, 1, 2]), ErrorCode.WRONG_TYPE),
    ):
        error = refused({**EPISODE, "env_t": wrong}, dialect)
        assert error.code is code or (dialect is not M and isinstance(wrong, np.ndarray)), wrong
        assert error.text.startswith("episode.env_t")


def test_packed_integers_are_no_log_probabilities() -> None:
    assert refused({**EPISODE, "action_logp": np.array([1, 2])}, M).code is ErrorCode.WRONG_TYPE


@BOTH
def test_episodes_of_several_agents_are_read_together(dialect: WireFormat) -> None:
    found = read(TOGETHER, dialect, several_agents)
    assert found.id == "e-2"
    assert (found.terminated, found.truncated) == (False, False)
    assert found.agents is not None
    assert list(found.agents) == ["plain", "masked"]
    assert found.agents["plain"].terminated
    assert found.steps == 4
    assert len(found.rewards) == len(found.obs) == len(found.actions) == 0
    assert same(found.agents["masked"].obs[1]["action_mask"], np.array([0, 1], np.int8))


@BOTH
def test_an_agent_is_told_by_its_name_where_something_is_wrong(dialect: WireFormat) -> None:
    together: Any = TOGETHER["agents"]
    agents = {**together, "plain": {**EPISODE, "rewards": [1, None]}}
    error = refused({**TOGETHER, "agents": agents}, dialect, several_agents)
    assert error.text == "episode.agents['plain'].rewards[1]: got null, expected float"
    error = refused({**TOGETHER, "agents": {"nobody": EPISODE}}, dialect, several_agents)
    assert error.code is ErrorCode.UNKNOWN_ID


@BOTH
def test_one_agent_and_several_are_not_mixed_up(dialect: WireFormat) -> None:
    assert refused(EPISODE, dialect, several_agents).code is ErrorCode.MALFORMED
    assert refused(TOGETHER, dialect).code is ErrorCode.MALFORMED


@pytest.mark.parametrize("ids", ['"a": %b, "a": %b', '"a": %b, "\\u0061": %b'])
def test_an_agent_that_is_there_twice_is_refused(ids: str) -> None:
    member = bytes(to_raw(EPISODE, J))
    body = b'{"is_terminated": true, "is_truncated": false, "agents": {%b}}' % (
        ids.replace("a", "plain", 1).replace('"a"', '"plain"').replace("\\u0061", "\\u0070lain").encode()
        % (member, member)
    )
    with pytest.raises(BadMessageError, match="malformed"):
        read_episode(body, several_agents, J)


def with_masks(masks: list[list[int]], actions: list[int], **flags: bool) -> dict[str, Any]:
    obs = [{"action_mask": mask, "camera": [[[0, 1, 2]] * 2] * 2, "word": "a"} for mask in masks]
    return {
        "obs": obs, "actions": actions, "rewards": [0.0] * len(actions),
        "is_terminated": False, "is_truncated": False, **flags,
    }  # fmt: skip


def masked(agent_id: str | None) -> Any:
    return several_agents("masked") if agent_id is None else None


@BOTH
def test_a_mask_has_to_allow_what_was_done(dialect: WireFormat) -> None:
    read(with_masks([[1, 0], [0, 1], [1, 1]], [0, 1]), dialect, masked)
    error = refused(with_masks([[1, 0], [0, 1], [1, 1]], [0, 0]), dialect, masked)
    assert error.code is ErrorCode.OUT_OF_RANGE
    assert error.text.startswith("episode.actions[1]: got an action that the mask of its observation forbids")


@BOTH
def test_only_the_last_observation_of_an_ended_episode_may_allow_nothing(dialect: WireFormat) -> None:
    masks, actions = [[1, 0], [0, 0]], [0]
    read(with_masks(masks, actions, is_terminated=True), dialect, masked)
    read(with_masks(masks, actions, is_truncated=True), dialect, masked)
    assert "obs[1]['action_mask']" in refused(with_masks(masks, actions), dialect, masked).text
    error = refused(with_masks([[0, 0], [1, 1]], [0], is_terminated=True), dialect, masked)
    assert "obs[0]['action_mask']: got a mask that allows nothing" in error.text


@BOTH
def test_masks_of_a_group_and_of_several_choices_are_followed(dialect: WireFormat) -> None:
    member = S.Dict({"action_mask": S.MultiBinary(2)})
    group = (S.Tuple([member, member]), S.Tuple([S.Discrete(2), S.Discrete(2, start=1)]))
    fields = {
        "obs": [[{"action_mask": [1, 0]}, {"action_mask": [0, 1]}]] * 2, "actions": [[0, 2]], "rewards": [0],
        "is_terminated": True, "is_truncated": False,
    }  # fmt: skip
    read(fields, dialect, lambda agent_id: group)
    assert (
        "episode.actions[0][1]"
        in refused({**fields, "actions": [[0, 1]]}, dialect, lambda agent_id: group).text
    )

    several = (S.Dict({"action_mask": S.MultiBinary(5)}), S.MultiDiscrete([2, 3]))
    fields = {**fields, "obs": [{"action_mask": [1, 1, 0, 0, 1]}] * 2}
    read({**fields, "actions": [[1, 2]]}, dialect, lambda agent_id: several)
    assert (
        refused({**fields, "actions": [[1, 1]]}, dialect, lambda agent_id: several).code
        is ErrorCode.OUT_OF_RANGE
    )


@BOTH
def test_masks_that_fit_no_action_are_left_to_the_policy(dialect: WireFormat) -> None:
    """An environment may call something else a mask; nothing breaks over it here."""
    member = S.Dict({"action_mask": S.MultiBinary(2)})
    one, group = {"action_mask": [1, 0]}, [{"action_mask": [1, 0]}] * 2
    for observations, obs, actions, action in (
        (member, one, S.Discrete(3), 1),
        (member, one, S.Box(-1, 1, (2,)), [0.0, 0.0]),
        (member, one, S.MultiDiscrete([2, 2]), [1, 1]),
        (S.Tuple([member, member]), group, S.Discrete(2), 1),
        (S.Tuple([member, member]), group, S.Tuple([S.Discrete(2)]), [0]),
    ):
        fields = {
            "obs": [obs] * 2,
            "actions": [action],
            "rewards": [0],
            "is_terminated": True,
            "is_truncated": False,
        }
        spaces: Any = (observations, actions)
        assert read(fields, dialect, lambda agent_id, spaces=spaces: spaces).steps == 1


def test_a_thousand_agents_with_a_space_object_each_are_read_with_the_readers_of_one() -> None:
    agents = [f"agent_{i}" for i in range(1000)]
    own = {agent: (S.Box(-10, 10, (4,), np.float32), S.Discrete(2)) for agent in agents}
    fields = {"is_terminated": True, "is_truncated": False, "agents": dict.fromkeys(agents, EPISODE)}
    found = read(fields, M, lambda agent_id: own.get(agent_id or ""))
    assert found.steps == 2000
    assert len({id(reader_of(observations)) for observations, _ in own.values()}) == 1


@settings(max_examples=150, deadline=None)
@given(spaces, spaces, st.sampled_from(WireFormat), st.integers(0, 2**31), st.integers(0, 4))
def test_episodes_of_any_spaces_survive_both_dialects(
    observations: Any, actions: Any, dialect: WireFormat, seed: int, steps: int
) -> None:
    for space in (observations, actions):
        space.seed(seed)
    played: dict[str, Any] = {
        "obs": [observations.sample() for _ in range(steps + 1)],
        "actions": [actions.sample() for _ in range(steps)],
        "rewards": np.arange(steps, dtype=np.float64) / 7,
        "is_terminated": False,
        "is_truncated": True,
    }
    found = read(played, dialect, lambda agent_id: (observations, actions))
    assert all(map(same, found.obs, played["obs"]))
    assert all(map(same, found.actions, played["actions"]))
    assert same(found.rewards, played["rewards"])
    assert found.steps == steps
