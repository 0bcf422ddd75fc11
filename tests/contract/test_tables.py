"""A `BaseEnv` of one's own that returns tables: `strict` names mistakes in the poll in which they are made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import (
    BaseEnv,
    ContractError,
    DefaultCallbacks,
    End,
    EpisodeEnd,
    Join,
    Policy,
    PolicySpec,
    Ready,
    Unclaimed,
    to_base_env,
)
from menv.algorithms import PPO
from tests.contract.scripted import altered
from tests.worlds import like, noting

SEATS = [(world, agent) for world in range(2) for agent in "abc"]


class Pairs(BaseEnv):
    """Two worlds of three agents, episodes of four env steps; an agent sees the env steps so far and is paid them."""

    returns_table = lockstep = True
    num_envs = 2
    observation_space = gym.spaces.Box(0.0, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, config: Any = None) -> None:
        self.slots: Any
        self.paid: Any
        self.slots, self.env_steps = np.arange(6, dtype=np.int32), np.zeros(2, np.int64)
        self.seen, self.paid = np.zeros((6, 1), np.float32), np.zeros(6, np.float32)
        self.taken: list[Any] = []
        self.polls = 0

    def poll(self, timeout: float | None = None) -> Ready:
        over = self.polls > 0 and not self.env_steps[0] % 4
        ended = [
            End(s, *who, self.paid[s], True, False, self.seen[s], {}) for s, who in enumerate(SEATS) if over
        ]
        joined = [Join(s, *who, who[0]) for s, who in enumerate(SEATS) if over or not self.polls]
        episodes = [EpisodeEnd(world, True, False, 4, world) for world in range(2) if over]
        self.polls += 1
        return Ready(self.slots, self.seen, self.paid * (not over), self.env_steps, joined, ended, episodes)

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.taken.append((slots, actions))
        self.env_steps += 1
        self.seen += 1
        self.paid[:] = self.seen[:, 0]


def changed(**parts: Callable[[Any], Any]) -> BaseEnv:
    """Return such an environment that returns something else for some parts of its tables."""

    class Changed(Pairs):
        def poll(self, timeout: float | None = None) -> Ready:
            ready = super().poll()
            return replace(ready, **{name: change(getattr(ready, name)) for name, change in parts.items()})

    return Changed()


def play(env: BaseEnv, polls: int = 6, strict: bool = True) -> list[Ready]:
    """Poll and answer everybody."""
    base_env, polled = to_base_env(env, strict=strict), []
    for _ in range(polls):
        polled.append(base_env.poll())
        base_env.send_actions(polled[-1].slots, [0] * len(polled[-1].slots))
    return polled


def first(**values: Any) -> Callable[[Any], Any]:
    """Change fields of the first entry, where there is one."""
    return lambda entries: [altered(one, **values) if not place else one for place, one in enumerate(entries)]


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("rewards", lambda a: a[1:]),
        ("obs", lambda a: a[1:]),
        ("infos", lambda a: [{}]),
        ("slots", lambda a: a[:, None]),
        ("slots", lambda a: a * 1.0),
        ("slots", lambda a: a * 0),
        ("slots", lambda a: a + 1),
        ("slots", lambda a: a - 1),
        ("joined", lambda a: [*a, *a[:1]]),
        ("joined", lambda a: [*a, Join(9, 0, "d", 0)]),
        ("joined", first(slot=-3)),
        ("joined", first(env_index=2)),
        ("joined", first(env_index=1)),
        ("joined", first(agent_id="b")),
        ("joined", first(agent_id="__all__")),
        ("joined", lambda a: [tuple(one) for one in a]),
        ("ended", lambda a: [*a, *a[:1]]),
        ("ended", first(slot=77)),
        ("ended", first(agent_id="b")),
        ("ended", first(terminated=False)),
        ("ended", first(info=None)),
        ("ended", lambda a: [tuple(one) for one in a]),
        ("episodes", first(env_index=-1)),
        ("episodes", first(env_index=1)),
        ("episodes", first(unclaimed=1)),
        ("unclaimed", lambda a: [Unclaimed(0, "a", 1.0, 7)]),
        ("unclaimed", lambda a: [1.0]),
        ("taken", lambda a: {9: 0}),
        ("played", lambda a: [None]),
        ("env_steps", lambda a: a[1:]),
        ("env_steps", lambda a: a % 4),
        ("env_steps", lambda a: 0 * a),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(part: str, change: Callable[[Any], Any]) -> None:
    with pytest.raises(ContractError, match=f"^Changed.poll: {part}: .*; ") as refused:
        play(changed(**{part: change}))
    assert refused.value.finding == "ME100"


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("rewards", lambda a: a * np.nan),
        ("ended", first(reward=np.inf)),
        ("unclaimed", lambda a: [Unclaimed(0, "a", None, 0)]),  # type: ignore[arg-type]
    ],
)
def test_a_reward_that_is_not_finite_is_refused_everywhere(part: str, change: Callable[[Any], Any]) -> None:
    with pytest.raises(ContractError, match="agent 'a'"):
        play(changed(**{part: change}), strict=False)


def test_a_waiting_row_is_delivered_once() -> None:
    base_env = to_base_env(Pairs(), strict=True)
    base_env.send_actions(base_env.poll().slots, [0] * 6)
    base_env.poll()
    with pytest.raises(ContractError, match="waits"):
        base_env.poll()


def test_an_end_comes_after_the_answer_or_after_a_reset() -> None:
    base_env = to_base_env(Pairs(), strict=True)
    base_env.send_actions(base_env.poll().slots, [0] * 6)
    for steps in range(3):
        ready = base_env.poll()
        if steps < 2:
            base_env.send_actions(ready.slots, [0] * 6)
    env = base_env.inner  # type: ignore[attr-defined]
    env.send_actions(None)
    with pytest.raises(ContractError, match="waits"):
        base_env.poll()
    base_env = to_base_env(Pairs(), strict=True)
    base_env.poll()
    env = base_env.inner  # type: ignore[attr-defined]
    env.env_steps += 4
    base_env.try_reset(0)
    assert len(base_env.poll().ended) == 6


@pytest.mark.parametrize("returned", [None, ({},) * 6])
def test_a_poll_that_is_not_a_table_is_refused(returned: Any) -> None:
    with pytest.raises(ContractError, match="returns_table"):
        play(like(Pairs, poll=lambda self, timeout=None: returned)())


def test_a_table_from_an_undeclared_environment_is_told_what_to_set() -> None:
    with pytest.raises(ContractError, match="returns_table"):
        play(like(Pairs, returns_table=False)())


@pytest.mark.parametrize(("slots", "message"), [([0], r"\[\"'b'\", \"'c'\"\]"), ([6], "slot 6")])
def test_only_waiting_agents_may_get_actions(slots: list[int], message: str) -> None:
    env = Pairs()
    base_env = to_base_env(env, strict=True)
    base_env.poll()
    with pytest.raises(ContractError, match=f"send_actions: .*{message}"):
        base_env.send_actions(slots, [1] * len(slots))
    assert env.taken == []
    # The refused answer has not spoilt anything.
    base_env.send_actions(np.arange(6), [1] * 6)
    with pytest.raises(ContractError, match="waiting"):
        base_env.send_actions(np.arange(6), [1] * 6)


def test_nested_answers_reach_the_environment_as_slots_and_actions() -> None:
    env = Pairs()
    base_env = to_base_env(env, strict=True)
    obs = base_env.poll()[0]
    base_env.send_actions(
        {world: {agent: ord(agent) for agent in by_agent} for world, by_agent in obs.items()}
    )
    ((slots, actions),) = env.taken
    assert slots.tolist() == list(range(6))
    assert actions == [97, 98, 99] * 2
    with pytest.raises(ContractError, match="'z'"):
        base_env.send_actions({0: {"z": 1}})


def test_returned_arrays_are_not_shared() -> None:
    env = Pairs()
    before, *_, last = play(env, 5)
    assert last.slots is before.slots
    assert before.env_steps.tolist() == [0, 0]
    assert [(end.slot, end.reward, type(end.reward)) for end in last.ended[:2]] == [
        (0, 4.0, float),
        (1, 4.0, float),
    ]
    # The environment has written into its array since.
    assert last.ended[0].obs.tolist() == [4.0]
    assert env.seen[0].tolist() == [5.0]
    assert last.seats[:6] == SEATS


def test_numbers_may_be_those_of_numpy() -> None:
    number: Any = np.int64
    yes: Any = np.True_

    class Numpy(Pairs):
        def poll(self, timeout: float | None = None) -> Ready:
            ready = super().poll()
            joined = [
                altered(one, slot=number(one.slot), env_index=number(one.env_index)) for one in ready.joined
            ]
            ended = [altered(one, slot=number(one.slot), terminated=yes) for one in ready.ended]
            episodes = [
                altered(one, env_index=number(one.env_index), env_steps=number(4)) for one in ready.episodes
            ]
            return replace(ready, joined=joined, ended=ended, episodes=episodes)

    results = []
    for env in (Pairs, Numpy):
        with PPO(env=env, config={"rollout_fragment_length": 6, "train_batch_size": 12, "seed": 0}) as algo:
            result = algo.train()
        results.append(
            [result[name] for name in ("digest", "hist_stats", "episode_len_mean") if name in result]
        )
    assert json.dumps(results[0]) == json.dumps(results[1])


def test_rewards_and_results_are_those_that_the_environment_paid() -> None:
    config = {"rollout_fragment_length": 6, "train_batch_size": 12, "num_sgd_iter": 1, "seed": 0}
    with PPO(env=Pairs, config=config) as algo:
        batch = algo.sample().policy_batches["default_policy"]
        lives = [piece["rewards"].tolist() for piece in batch.split_by_episode()]
        assert sorted(lives) == sorted([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0]] * 6)
        result = algo.train()
        assert result["episode_reward_mean"] in {3 * 10.0, 3 * 26.0, 3 * 18.0}
        json.dumps(
            {name: result[name] for name in ("episode_reward_mean", "policy_reward_mean", "hist_stats")}
        )


@pytest.mark.parametrize("backwards", [False, True])
def test_episodes_that_end_together_are_reported_in_the_order_of_their_worlds(backwards: bool) -> None:
    class Told(Pairs):
        def poll(self, timeout: float | None = None) -> Ready:
            ready = super().poll()
            ready = replace(ready, rewards=np.array([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]) * (ready.rewards > 0))
            ended = [altered(end, reward=1.0 + (end.env_id == 1)) for end in ready.ended]
            step = -1 if backwards else 1
            return replace(ready, ended=ended[::step], episodes=ready.episodes[::step])

    with PPO(env=Told, config={"rollout_fragment_length": 8, "train_batch_size": 16, "seed": 0}) as algo:
        assert algo.train()["hist_stats"]["episode_reward"] == [12.0, 24.0] * 2


def test_env_steps_continue_from_those_of_a_checkpoint(tmp_path: Path) -> None:
    config = {"rollout_fragment_length": 6, "train_batch_size": 12, "num_sgd_iter": 1, "seed": 0}
    watching, seen = noting("on_episode_step", lambda *, base_env, **_: base_env._before.tolist())
    with PPO(env=Pairs, config=config) as algo:
        algo.train()
        folder = algo.save(tmp_path)
        counted = algo.train()["num_env_steps_sampled"]
    with PPO(env=Pairs, config={**config, "callbacks": watching}) as algo:
        algo.restore(folder)
        assert algo.train()["num_env_steps_sampled"] == counted
    assert seen[0] == [6, 6]


# The arrays of a table may be written into once the next is made: what policies and callbacks keep are copies.


class Alternating(Pairs):
    """One world's rows a poll; all are shown in one array, which is used again."""

    lockstep = False

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.shown, self.due = np.zeros((3, 1), np.float32), [0, 1]

    def poll(self, timeout: float | None = None) -> Ready:
        self.polls += 1
        world = self.due.pop(0)
        self.env_steps[world] += self.polls > 2
        self.shown[:] = 100 * world + self.env_steps[world]
        joined = [
            Join(s, *SEATS[s], world) for s in range(3 * world, 3 * world + 3) if not self.env_steps[world]
        ]
        return Ready(np.arange(3) + 3 * world, self.shown, np.zeros(3), self.env_steps, joined)

    def send_actions(self, slots: Any, actions: Any = None) -> None:
        self.due += sorted(set((np.asarray(slots) // 3).tolist()))


def test_policies_and_callbacks_are_shown_what_agents_saw_in_an_array_that_is_used_again() -> None:
    decided: list[float] = []
    kept: list[tuple[Any, int]] = []

    class Own(Policy):
        def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Any:
            decided.extend(float(one[0]) for one in obs_batch)
            return [0] * len(obs_batch), [], {}

    class Watching(DefaultCallbacks):
        def on_episode_step(self, *, worker: Any, **kwargs: Any) -> None:
            for episode in worker.running.values():
                seen = episode.last_observation_for("a")
                kept.extend([(episode.env_id, int(seen[0]) // 100)] if seen is not None else [])

    spec = {"policies": {"own": PolicySpec(policy_class=Own)}, "policies_to_train": []}
    multiagent = {**spec, "policy_mapping_fn": lambda *args, **kwargs: "own"}
    config = {"rollout_fragment_length": 3, "train_batch_size": 6, "seed": 0, "multiagent": multiagent}
    with PPO(env=Alternating, config={**config, "callbacks": Watching}) as algo:
        for _ in range(3):
            algo.sample()
    assert len(decided) == 3 * len(set(decided)) == 2 * 3 * 9
    assert kept
    assert all(world == shown for world, shown in kept)
