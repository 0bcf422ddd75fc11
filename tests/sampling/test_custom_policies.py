"""What a user's own policy is shown at each call, and what it may remember, through real runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import PolicySpec, RandomPolicy
from menv.algorithms import PPO
from menv.errors import ContractError, MenvError
from menv.policy import Policy
from tests.bad_input.broken_envs import checked
from tests.worlds import Several, like, raising

AGENTS = ["day", "night", "guest"]
LENGTH = 13


class Shifts(Several):
    """ "day" acts at every env step, "night" at every third; "guest" comes for two of every four.

    All see `[env step, number of the agent, number of its life, number of the episode]`.
    """

    possible_agents, length = AGENTS, LENGTH
    observation_space = gym.spaces.Box(-1.0, 1e6, (4,), np.float32)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.action_space = config.get("action_space") or gym.spaces.Discrete(5)
        self.episode = config.vector_index * 1000

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.lives = dict.fromkeys(AGENTS, 0)
        return super().reset(seed=seed)

    def shown(self) -> Any:
        return ["day", *(["night"] if self.at % 3 == 0 else []), *(["guest"] if self.at % 4 < 2 else [])]

    def see(self, agent: str) -> Any:
        return np.array([self.at, AGENTS.index(agent), self.lives[agent], self.episode], np.float32)

    def infos(self) -> Any:
        return {agent: {"who": agent, "at": self.at} for agent in self.shown()}

    def pay(self, actions: Any) -> Any:
        # The guest is paid before it comes, too.
        return {"day": 0.0 + self.at, "night": 99.0 + self.at, "guest": 999.0 + self.at}

    def dead(self, actions: Any) -> Any:
        gone = ["guest"] if self.at % 4 == 2 else []
        self.lives["guest"] += len(gone)
        return gone


class Diary(Policy):
    """Counts its actions in its state, answers by it, and writes down all that it is shown."""

    pages: list[dict[str, Any]]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pages = []
        self.calls = 0
        self.seen = np.zeros((6, 2), np.float32)

    def get_initial_state(self) -> list[Any]:
        return [0, np.array([0.5, -1.0], np.float32)]

    def compute_actions(
        self,
        obs_batch: Sequence[Any],
        state_batches: Sequence[Any] | None = None,
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Any = None,
        episodes: Any = None,
        explore: bool | None = None,
        timestep: int | None = None,
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        assert state_batches is not None
        count, last = state_batches
        assert count.shape == (len(obs_batch),)
        assert last.shape == (len(obs_batch), 2)
        actions = [self.action(number) for number in count.tolist()]
        for row, obs in enumerate(obs_batch):
            page = {"obs": obs.tolist(), "count": int(count[row]), "last": last[row].tolist()}
            told = {"prev_action": prev_action_batch[row], "prev_reward": float(prev_reward_batch[row])}
            rest = {
                "info": info_batch[row],
                "episode": episodes[row],
                "explore": explore,
                "timestep": timestep,
            }
            self.pages.append({**page, **told, **rest, "action": actions[row], "call": self.calls})
        self.calls += 1
        # An array that is used again: whoever remembers it has to copy.
        seen = self.seen[: len(obs_batch)]
        seen[:] = [obs[:2] for obs in obs_batch]
        return actions, [count + 1, seen], {}

    def action(self, number: int) -> Any:
        return (2 * number + 1) % 5


def played(fragments: int, policy_class: type[Policy] = Diary, **settings: Any) -> tuple[Any, list[Any]]:
    """Return the policy after so many fragments, and these."""
    config = {
        "num_envs_per_worker": 2, "rollout_fragment_length": 5, "train_batch_size": 10, "seed": 3,
        "multiagent": {"policies": {"own": PolicySpec(policy_class=policy_class)}}, **settings,
    }  # fmt: skip
    with PPO(env=Shifts, config=config) as algo:
        return algo.get_policy("own"), [algo.sample() for _ in range(fragments)]


def lives_of(pages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the pages of each life, in order."""
    lives: dict[tuple[float, ...], list[dict[str, Any]]] = {}
    for page in pages:
        lives.setdefault(tuple(page["obs"][1:]), []).append(page)
    return list(lives.values())


def test_a_state_lasts_as_long_as_its_trajectory() -> None:
    policy, _ = played(12)
    lives = lives_of(policy.pages)
    assert len(lives) > 20
    for life in lives:
        assert [page["count"] for page in life] == list(range(len(life)))
        shown = [[0.5, -1.0], *(page["obs"][:2] for page in life)]
        assert [page["last"] for page in life] == shown[:-1]
    # Somebody lived over a cut, somebody paused, and somebody came again.
    assert {len(life) for life in lives} >= {LENGTH, 5, 2}


def test_previous_actions_and_rewards_are_those_of_the_same_life() -> None:
    policy, _ = played(12)
    for life in lives_of(policy.pages):
        agent = int(life[0]["obs"][1])
        assert (life[0]["prev_action"], life[0]["prev_reward"]) == (0, 0.0)
        for before, page in itertools.pairwise(life):
            assert page["prev_action"] == before["action"]
            steps = range(int(before["obs"][0]), int(page["obs"][0]))
            early = before["count"] == 0 and agent == 2 and steps.start > 0
            earned = [[1.0, 100.0, 1000.0][agent] + step for step in [steps.start - 1] * early + [*steps]]
            assert page["prev_reward"] == sum(earned)


def test_infos_episodes_and_counts_are_those_of_the_row() -> None:
    policy, batches = played(6, explore=False)
    for page in policy.pages:
        at, agent, _, number = page["obs"]
        assert page["info"] == {"who": AGENTS[int(agent)], "at": at}
        assert page["episode"].env_id == int(number) // 1000
        assert page["explore"] is False
    steps = [page["timestep"] for page in policy.pages]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, sum(batch.env_steps() for batch in batches) - 2)


def test_a_policy_that_answers_rows_is_shown_and_asked_nothing_more() -> None:
    _, (batch,) = played(1, like(RandomPolicy, get_initial_state=raising(AssertionError("nobody asks"))))
    assert set(batch["own"]["actions"]) <= set(range(5))


def broken(returned: Any, initial: list[Any] | None = None) -> Any:
    return like(
        Policy, compute_actions=lambda self, obs_batch, *args, **kwargs: returned(len(obs_batch)),
        get_initial_state=lambda self: initial or [],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy_class", "message"),
    [
        (broken(lambda rows: [0] * rows), "compute_actions"),
        (broken(lambda rows: ([0] * rows, [])), "compute_actions"),
        (broken(lambda rows: ([0], [], {})), "answered"),
        (broken(lambda rows: ([0] * rows, [[1] * rows], {})), "1 states"),
        (broken(lambda rows: ([0] * rows, [], {}), [1]), "0 states"),
        (broken(lambda rows: ([0] * rows, [[1]], {}), [1]), "1 states"),
        (broken(lambda rows: ([0] * rows, [7], {}), [1]), "1 states"),
        (broken(lambda rows: ([0] * rows, [np.zeros((rows, 3))], {}), [np.zeros(2)]), "state_in_0"),
        (type("Empty", (Policy,), {}), "Empty.compute_actions"),
    ],
)  # fmt: skip
def test_answers_of_another_form_are_refused(policy_class: type[Policy], message: str) -> None:
    with pytest.raises(MenvError, match=message) as caught:
        played(5, policy_class)
    assert isinstance(caught.value, ContractError)
    checked(str(caught.value))


@pytest.mark.parametrize(
    ("action", "got"), [(0.5, r"shape \(\)"), ([0.5, 0.5, 0.5], r"shape \(3,\)"), ("left", "str")]
)
def test_box_actions_of_another_shape_are_refused_by_name(action: Any, got: str) -> None:
    box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    policy = broken(lambda rows: ([action] * rows, [], {}))
    with pytest.raises(ContractError, match=rf"^policy 'own': action: .*float32.*\(2,\).*{got};"):
        played(1, policy, env_config={"action_space": box})


class Short(Policy):
    def compute_actions(self, obs_batch: Any, explore: Any = None) -> Any:  # type: ignore[override]
        assert explore is True
        return [3] * len(obs_batch), [], {}


def test_compute_actions_receives_only_the_parameters_that_it_names() -> None:
    _, batches = played(2, Short)
    assert all(set(batch.policy_batches["own"]["actions"].tolist()) == {3} for batch in batches)


class Fetching(Diary):
    """Also tells how sure it was, and of what it thought."""

    def compute_actions(self, obs_batch: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        actions, states, _ = super().compute_actions(obs_batch, *args, **kwargs)
        thoughts = np.array([obs[:2] for obs in obs_batch])
        values = [float(obs[0]) for obs in obs_batch]
        # Integers in the first call, in which all steps are 0.
        shares = [step / 4 if step % 4 else step // 4 for step in (states[0] - 1).tolist()]
        # Names such as a user would choose, and that menv may not need for itself.
        own = {
            "income": values,
            "answered": [obs[0] > 1 for obs in obs_batch],
            "slots": values,
            "state": thoughts,
        }
        return actions, states, {"vf_preds": values, "thoughts": thoughts, "shares": shares, **own}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_states_and_fetches_are_columns_of_the_batch(workers: int) -> None:
    _, batches = played(8, Fetching, num_workers=workers, engine="process", num_envs_per_worker=2 - workers)
    rows = 0
    for found in batches:
        own = found["own"]
        rows += own.count
        assert own["vf_preds"].tolist() == own["obs"][:, 0].tolist()
        assert own["thoughts"].tolist() == own["obs"][:, :2].tolist()
        assert own["shares"].tolist() == (own["t"] / 4).tolist()
        assert own["income"].tolist() == own["slots"].tolist() == own["obs"][:, 0].tolist()
        assert own["answered"].tolist() == (own["obs"][:, 0] > 1).tolist()
        assert own["state"].tolist() == own["obs"][:, :2].tolist()
        assert own["state_in_0"].tolist() == own["t"].tolist()
        assert own["state_out_0"].tolist() == (own["t"] + 1).tolist()
        assert own["state_out_1"].tolist() == own["obs"][:, :2].tolist()
        begins = own["t"] == 0
        assert own["state_in_1"][begins].tolist() == [[0.5, -1.0]] * int(begins.sum())
    assert rows > 40


# Keeps its state in a dict.
DictState = like(Diary, get_initial_state=lambda self: {"h": np.zeros(2)})


class DictReturned(Diary):
    """Returns its state as a dict."""

    def compute_actions(self, obs_batch: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        actions, (count, seen), _ = super().compute_actions(obs_batch, *args, **kwargs)
        return actions, {"count": count, "seen": seen}, {}


@pytest.mark.parametrize(
    ("policy_class", "where"), [(DictState, "get_initial_state"), (DictReturned, "compute_actions")]
)
def test_a_state_that_is_a_dict_is_refused_with_what_to_return(
    policy_class: type[Policy], where: str
) -> None:
    with pytest.raises(ContractError, match=rf"policy 'own': {where}: .*dict.*list\(state.values"):
        played(1, policy_class)
    if policy_class is DictState:
        with pytest.raises(ContractError, match="get_initial_state"):
            policy_class(gym.spaces.Discrete(2), gym.spaces.Discrete(2)).act(0)


@pytest.mark.parametrize(
    "fetches",
    [
        {"value": 0.5},
        {"value": [1.0]},
        {"rewards": None},
        {"value": [[1], [2, 3]]},
        {"x": {"y": 1}},
        {"state_in_0": None},
        {"state_out_1": None},
        {"menv.slots": None},
    ],
)
def test_a_fetch_has_a_value_for_each_row_and_a_unique_name(fetches: dict[str, Any]) -> None:
    class Careless(Diary):
        def compute_actions(self, obs_batch: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            actions, states, _ = super().compute_actions(obs_batch, *args, **kwargs)
            own = {key: [1.0] * len(actions) if one is None else one for key, one in fetches.items()}
            return actions, states, own

    name = next(iter(fetches))
    with pytest.raises(ContractError, match=name):
        played(1, Careless)
