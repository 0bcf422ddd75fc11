"""What the classic system's own tests of external environments ask for, with their numbers, and its loop by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from menv.algorithms import DQN, PPO
from menv.errors import ContractError
from tests.external.told import Told, calling, obs, training
from tests.external.walk import Walk, walk_on
from tests.worlds import TWO, Alone


class Fifty(Alone):
    """An episode has 50 steps, each of which earns 1."""

    observation_space, length = TWO, 50

    def see(self) -> Any:
        return 0


def fifty(env: Any) -> None:
    game = Fifty()
    while True:
        episode, over = env.start_episode(), False
        game.reset()
        while not over:
            _, reward, over, _, info = game.step(env.get_action(episode, 0))
            env.log_returns(episode, reward, info)
        env.end_episode(episode, 0)


def sampled(length: int, batch_mode: str, times: int = 3) -> list[Any]:
    env = Told(fifty, observation_space=Fifty.observation_space, action_space=Fifty.action_space)
    with training(
        env, PPO, rollout_fragment_length=length, train_batch_size=length, batch_mode=batch_mode
    ) as algo:
        return [algo.sample() for _ in range(times)]


@pytest.mark.parametrize(("length", "episodes"), [(1, 1), (40, 1), (50, 1), (60, 2)])
def test_complete_episodes_have_50_steps(length: int, episodes: int) -> None:
    for batch in sampled(length, "complete_episodes"):
        assert batch["default_policy"].segments.lengths.tolist() == [50] * episodes
        assert batch["default_policy"]["terminateds"].sum() == episodes
        assert batch.env_steps() == 50 * episodes


def test_episodes_are_cut_at_40_steps_and_continue() -> None:
    batches = sampled(40, "truncate_episodes", 5)
    assert [batch.env_steps() for batch in batches] == [40] * 5
    # A row whose outcome is not known yet comes with the next fragment.
    steps = [step for batch in batches for step in batch["default_policy"]["t"].tolist()]
    assert steps == (list(range(50)) * 4)[: len(steps)]
    assert len(steps) >= 199
    assert sum(batch["default_policy"]["rewards"].sum() for batch in batches) == len(steps)


@pytest.mark.parametrize(
    ("seen", "action"), [*((obs(0, 0), wrong) for wrong in (3, -1, 1.5, None)), (np.zeros(3, np.float32), 0)]
)
def test_an_observation_or_action_outside_its_space_is_an_error_that_names_it(seen: Any, action: Any) -> None:
    env = Told()
    with training(env, DQN) as algo:
        env.start_episode("x")
        env.log_action("x", seen, action)
        with pytest.raises(ContractError, match=r"'agent0'.*" + ("action" if len(seen) == 2 else "obs")):
            algo.sample()


def test_a_manual_loop_sees_the_calls_and_answers_them() -> None:
    env = Told(max_concurrent=3)
    base_env = env.to_base_env()
    got: dict[str, list[Any]] = {}

    def play(name: str) -> Any:
        def episode() -> None:
            env.start_episode(name)
            got[name] = []
            for step in range(2):
                got[name].append(env.get_action(name, obs(ord(name), step)))
                env.log_returns(name, 1.0)
                env.log_returns(name, 2.0, {"step": step})
            env.log_action(name, obs(ord(name), 2), 42)
            env.end_episode(name, obs(ord(name), 3))

        return episode

    seen: dict[str, list[Any]] = {"x": [], "y": []}
    with calling(play("x"), play("y")):
        while sum(map(len, seen.values())) < 8:
            observed, rewards, terminateds, truncateds, infos, taken = base_env.poll()
            for name in observed:
                told = observed[name].get("agent0")
                step, over = None if told is None else int(told[1]), terminateds[name]["__all__"]
                flags = over, truncateds[name]["__all__"]
                seen[name].append((step, rewards[name]["agent0"], *flags, taken.get(name)))
                if over:
                    assert infos[name]["agent0"]["final_obs"].tolist() == [ord(name), 3.0]
                else:
                    assert infos[name]["agent0"] == ({"step": step - 1} if step else {})
            base_env.send_actions({name: {"agent0": 7} for name in observed if observed[name]})
        env.over.set()
    wanted = [
        (0, 0.0, False, False, None), (1, 3.0, False, False, None), (2, 3.0, False, False, {"agent0": 42}),
        (None, 0.0, True, False, None),
    ]  # fmt: skip
    assert seen == {"x": wanted, "y": wanted}
    assert got == {"x": [7, 7], "y": [7, 7]}
    base_env.stop()


def test_a_poll_with_a_timeout_returns_empty_without_callers() -> None:
    env = Told()
    base_env = env.to_base_env()
    ready = base_env.poll(0.05)
    assert [dict(part) for part in ready] == [{}] * 6
    assert np.size(ready.slots) == 0
    env.over.set()


def test_complete_episodes_wait_for_running_episodes_but_not_for_later_ones() -> None:
    walk = Walk()
    env = Told(
        lambda env: walk_on(env, walk),
        observation_space=walk.observation_space,
        action_space=walk.action_space,
    )
    with training(env, PPO, rollout_fragment_length=10, batch_mode="complete_episodes") as algo:
        lengths = [algo.sample()["default_policy"].segments.lengths.tolist() for _ in range(4)]
    assert lengths == [[3, 4, 5], [6, 7], [3, 4, 5], [6, 7]]
