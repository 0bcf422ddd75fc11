"""Policies asked by hand: one observation or several, with what each agent's policy remembers of its episode."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import Policy, local_policy_inference
from menv.errors import ConfigError, ContractError
from tests.bundles.cases import algorithm_of, observations, same


class Diary(Policy):
    """Counts its steps in its state and notes what it is shown."""

    def __init__(self) -> None:
        super().__init__(gym.spaces.Discrete(9), gym.spaces.Discrete(9))
        self.seen: list[Any] = []

    def get_initial_state(self) -> list[Any]:
        return [np.zeros(1)]

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, *rest: Any, **more: Any) -> Any:
        actions, rewards, infos = rest[:3]
        self.seen += list(zip(obs_batch, np.asarray(actions).tolist(), rewards.tolist(), infos, strict=True))
        after = np.asarray(state_batches[0]) + 1
        return np.asarray(obs_batch), [after], {"steps": after[:, 0]}


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["lstm", "gru", "lstm of numbers"])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_state_is_kept_for_each_agent_until_its_episode_ends(kind: str, end: str, tmp_path: Path) -> None:
    with algorithm_of(kind) as algorithm:
        algorithm.export_policy_checkpoint(tmp_path / "policy")
        for policy in (algorithm.get_policy(), Policy.from_checkpoint(tmp_path / "policy")):
            assert isinstance(policy, Policy)
            states: dict[Any, Any] = {}
            for step, obs in enumerate(observations(policy, 24)):
                key = (step % 2, "ab"[step % 3 == 0])
                ended = step % 7 == 6
                state = states.get(key) or policy.get_initial_state()
                wanted = policy.act(obs, state=state)
                ((action, after, fetches),) = local_policy_inference(
                    policy,
                    *key,
                    obs,
                    explore=False,
                    **{end: np.bool_(ended)},  # type: ignore[arg-type]
                )
                assert same((action, after), wanted)
                assert np.shape(fetches["action_logp"]) == ()
                states[key] = None if ended else after


def test_a_list_of_observations_gives_as_many_answers_in_order() -> None:
    with algorithm_of("mlp") as algorithm:
        policy = algorithm.get_policy()
        shown = observations(policy, 6)
        answers = local_policy_inference(policy, 0, [1, 2, 3, 4, 5, 6], shown, explore=False)
        assert [answer[0] for answer in answers] == [policy.act(obs) for obs in shown]
        assert local_policy_inference(policy, 0, [], []) == []
        with pytest.raises(ContractError, match="agent_id"):
            local_policy_inference(policy, 0, [1, 2], shown)


def test_a_custom_policy_is_shown_its_last_action_reward_and_info() -> None:
    diary = Diary()
    local_policy_inference(diary, 0, 0, 3, reward=7.0, info={"n": 1})
    local_policy_inference(diary, 0, 0, 4, reward=0.5)
    local_policy_inference(diary, 0, 1, 5, reward=2.0)
    assert diary.seen == [(3, 0, 0.0, {"n": 1}), (4, 3, 0.5, {}), (5, 0, 0.0, {})]


def test_an_observation_outside_the_space_is_refused() -> None:
    with algorithm_of("mlp") as algorithm, pytest.raises(ContractError, match="obs"):
        local_policy_inference(algorithm.get_policy(), 0, 0, np.zeros(9, np.float32))


def test_several_policies_instead_of_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="policy"):
        local_policy_inference({"a": Diary()}, 0, 0, 1)  # type: ignore[arg-type]


def test_a_reset_forgets_the_agents_of_one_environment() -> None:
    with algorithm_of("lstm") as algorithm:
        policy: Any = algorithm.get_policy()
        shown = observations(policy, 2)

        def ask(env_id: int, agent_id: str, obs: Any) -> Any:
            return local_policy_inference(policy, env_id, agent_id, obs, explore=False)

        first, other = ([ask(env_id, agent, shown[0]) for agent in "ab"] for env_id in (0, 1))
        assert same(first, other)
        later = ask(0, "a", shown[1])
        policy.agent_connectors.reset(0)
        assert same([ask(0, agent, shown[0]) for agent in "ab"], first)
        assert same(ask(1, "a", shown[1]), later)


@pytest.mark.parametrize("kind", ["masked", "masked components", "gru", "group"])
def test_the_last_observation_of_a_game_may_allow_no_action(kind: str) -> None:
    with algorithm_of(kind) as algorithm:
        policy = algorithm.get_policy(next(iter(algorithm.get_weights())))
        first, last = observations(policy, 2)
        before = local_policy_inference(policy, "env", "agent", first, explore=False)
        for member in last if isinstance(last, tuple) else (last,):
            member["action_mask"][:] = 0
        for end in ("terminated", "truncated"):
            local_policy_inference(policy, "env", "agent", last, **{end: True})
            assert same(local_policy_inference(policy, "env", "agent", first, explore=False), before)
        with pytest.raises(ContractError, match="action_mask"):
            local_policy_inference(policy, "env", "agent", last)


# One policy that several threads ask answers each of them as if it were alone.


THREADS, ROUNDS = 4, 300


def in_threads(work: Any) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


@pytest.mark.parametrize("kind", ["lstm", "nested", "masked"])
def test_threads_get_the_answers_to_their_own_observations(kind: str, tmp_path: Path) -> None:
    with algorithm_of(kind) as algorithm:
        algorithm.export_policy_checkpoint(tmp_path / "policy")
    policy: Any = Policy.from_checkpoint(tmp_path / "policy")
    shown = observations(policy, 20)
    state = policy.get_initial_state() or None
    wanted = [policy.act(obs, state=state) for obs in shown]

    def wrong(thread: int) -> int:
        chosen = np.random.default_rng(thread).integers(0, len(shown), ROUNDS).tolist()
        return sum(not same(policy.act(shown[place], state=state), wanted[place]) for place in chosen)

    assert in_threads(wrong) == [0] * THREADS
