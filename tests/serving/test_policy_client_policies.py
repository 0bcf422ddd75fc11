"""Policy clients with every kind of policy: memory, masks, continuous actions, several agents and policies."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.envs import RandomMultiAgentEnv
from menv.errors import ContractError
from menv.inference.policy_bundle import pack_bundle, pack_weights, policy_from_bytes
from menv.serving.client.policy_client import PolicyClient
from menv.serving.limits import Limits
from menv.serving.policy_server import PolicyServerInput
from menv.serving.protocol import SetState
from tests.serving.courses import Course, observation, play
from tests.serving.served import served, settled

MODES = ("local", "remote")
BOX = gym.spaces.Box(np.array([-3.0, 10.0], np.float32), np.array([5.0, 12.0], np.float32))
MASKED = gym.spaces.Dict(
    {"action_mask": gym.spaces.MultiBinary(3), "seen": gym.spaces.Box(-1.0, 1.0, (2,), np.float32)}
)
TEAMS: dict[str, Any] = {
    "env": RandomMultiAgentEnv,
    "env_config": {"num_agents": ["red_0", "red_1", "blue_0"], "end_prob": 0.1, "appear_prob": 0.4},
    "observation_space": None,
    "action_space": None,
    "multiagent": {
        "policies": ["red", "blue"],
        "policy_mapping_fn": lambda agent_id, **kwargs: agent_id.partition("_")[0],
    },
}


@pytest.mark.parametrize("mode", MODES)
def test_continuous_actions_arrive_within_the_bounds_and_are_learned_from_as_they_were_drawn(
    mode: str,
) -> None:
    with (
        Course({"action_space": BOX}) as course,
        PolicyClient(course.address, mode, update_interval=None) as client,  # type: ignore[arg-type]
    ):
        played = play(client, [float(number) for number in range(40)])
        client.close()
        assert course.has_rewards([float(number) for number in range(40)])
        assert all(BOX.contains(action) for action in played)
        order = np.argsort(course.column("rewards"))
        policy = course.algo.get_policy()
        expected = policy.networks.output(course.column("actions")[order])
        assert np.allclose(played, expected, atol=1e-5)
        logp = course.algo.get_policy().networks.backend.evaluate(
            0, course.column("obs")[order], None, course.column("actions")[order]
        )
        assert np.allclose(course.column("action_logp")[order], logp.logp, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_masks_hold_wherever_actions_are_chosen(mode: str) -> None:
    with (
        Course({"observation_space": MASKED, "action_space": gym.spaces.Discrete(3)}) as course,
        PolicyClient(course.address, mode) as client,  # type: ignore[arg-type]
    ):
        name, allowed = client.start_episode(), 0
        for number in range(30):
            allowed = number % 3
            mask = np.zeros(3, np.int8)
            mask[allowed] = 1
            action = client.get_action(name, {"action_mask": mask, "seen": np.zeros(2, np.float32)})
            assert action == allowed
            client.log_returns(name, float(number))
        client.end_episode(name, {"action_mask": np.zeros(3, np.int8), "seen": np.zeros(2, np.float32)})
        client.close()
        assert course.has_rewards([float(number) for number in range(30)])


@pytest.mark.parametrize("mode", MODES)
def test_memory_belongs_to_an_episode(mode: str) -> None:
    model = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
    with (
        Course({"model": model, "rollout_fragment_length": 5, "train_batch_size": 10}) as course,
        PolicyClient(course.address, mode) as client,  # type: ignore[arg-type]
    ):
        names = [client.start_episode() for _ in range(2)]
        for number in range(15):
            for name in names:
                client.get_action(name, observation(number))
                client.log_returns(name, float(number))
        for name in names:
            client.end_episode(name, observation(15))
        client.close()
        assert course.has_rewards([float(number) for number in range(15)] * 2)
        rewards, states = course.column("rewards"), course.column("state_in_0")
        for number in range(15):
            both = states[rewards == number]
            assert np.allclose(both[0], both[1], atol=1e-5)
            assert both.any() == (number > 0)


@pytest.mark.parametrize("mode", MODES)
def test_agents_come_and_go_under_two_policies(mode: str) -> None:
    env = RandomMultiAgentEnv(TEAMS["env_config"])
    paid: dict[str, list[float]] = {"red": [], "blue": []}
    number = 0
    with Course(TEAMS) as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        for seed in range(4):
            obs, _ = env.reset(seed=seed)
            name, over = client.start_episode(), False
            while not over:
                actions = client.get_action(name, obs)
                assert actions.keys() == set(env.agents)
                obs, _, terminateds, truncateds, _ = env.step(actions)
                rewards = {}
                for agent in actions:
                    number += 1
                    rewards[agent] = float(number)
                    paid[agent.partition("_")[0]].append(float(number))
                over = terminateds.pop("__all__") or truncateds.pop("__all__")
                client.log_returns(name, rewards, multiagent_done_dict=terminateds)
            client.end_episode(name, obs, truncated=bool(env.agents))
        client.close()
        for policy, rewards_of in paid.items():
            assert course.has_rewards(rewards_of, policy)
        assert course.column("terminateds", "red").sum() > 4


@pytest.mark.parametrize("mode", MODES)
def test_who_is_done_with_the_last_step_of_a_truncated_episode_is_terminated(mode: str) -> None:
    seen = np.zeros(10, np.float32)
    with Course(TEAMS) as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        client.get_action(name, {"red_0": seen, "blue_0": seen})
        client.log_returns(name, {"red_0": 1.0, "blue_0": 2.0}, multiagent_done_dict={"red_0": True})
        client.end_episode(name, {"red_0": seen, "blue_0": seen}, truncated=True)
        client.close()
        assert course.has_rewards([1.0], "red")
        assert course.has_rewards([2.0], "blue")
        for policy, flags in (("red", (True, False)), ("blue", (False, True))):
            assert (course.column("terminateds", policy)[0], course.column("truncateds", policy)[0]) == flags


@pytest.mark.parametrize("mode", MODES)
def test_who_is_said_to_be_done_and_does_not_live_is_not_asked_either(mode: str) -> None:
    seen = np.zeros(10, np.float32)
    with Course(TEAMS) as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        client.get_action(name, {"red_0": seen, "blue_0": seen})
        client.log_returns(name, {"red_0": 1.0, "blue_0": 2.0}, multiagent_done_dict={"red_0": True})
        client.get_action(name, {"blue_0": seen})
        # One is done again, the other one never acted.
        client.log_returns(name, {"red_1": 4.0}, multiagent_done_dict={"red_0": True, "red_1": True})
        everybody = {"red_0": seen, "red_1": seen, "blue_0": seen}
        assert client.get_action(name, everybody).keys() == {"blue_0"}
        client.log_returns(name, {"red_1": 8.0})
        assert client.get_action(name, everybody).keys() == everybody.keys()
        client.end_episode(name, {})
        client.close()
        assert course.has_rewards([2.0, 0.0, 0.0, 0.0], "blue")
        assert course.has_rewards([1.0, 0.0, 8.0], "red")
        assert course.algo._metrics.summary()["hist_stats"]["episode_reward"] == [15.0]


@pytest.mark.parametrize("mode", MODES)
def test_agents_that_take_turns_make_an_env_step_each(mode: str) -> None:
    seen = np.zeros(10, np.float32)
    with Course(TEAMS) as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        for turn in range(20):
            client.get_action(name, {f"red_{turn % 2}": seen})
        client.get_action(name, {"red_0": seen, "red_1": seen})
        client.end_episode(name, {})
        client.close()
        assert course.has_rewards([0.0] * 22, "red")
        assert course.algo._metrics.summary()["hist_stats"]["episode_lengths"] == [21]


@pytest.mark.parametrize("mode", ["local", "remote"])
def test_an_episode_is_as_long_as_it_was_wherever_messages_cut_it(mode: str) -> None:
    seen = np.zeros(10, np.float32)
    with Course(TEAMS) as course, PolicyClient(course.address, mode) as client:  # type: ignore[arg-type]
        name = client.start_episode()
        for _ in range(12):
            client.get_action(name, {"red_0": seen})
        client.end_episode(name, {})
        client.close()
        assert course.has_rewards([0.0] * 12, "red")
        assert course.algo._metrics.summary()["hist_stats"]["episode_lengths"] == [12]


def turns(mode: Any) -> list[tuple[str, int, int, int]]:
    """Return what was seen when in a game of agents that pause, end and come late: policy, move, env steps."""
    with (
        Course({**TEAMS, "critic_obs": "all_agents"}) as course,
        PolicyClient(course.address, mode) as client,
    ):
        name, moves, number = client.start_episode(), [*["red_0"] * 5, *["blue_0"] * 9], 0
        for agents in [*([agent] for agent in moves), ["red_0", "blue_0"], ["red_0", "red_1"], ["red_0"]]:
            client.get_action(name, {agent: np.full(10, number / 100, np.float32) for agent in agents})
            number += 1
            client.log_returns(
                name, dict.fromkeys(agents, 1.0), multiagent_done_dict={"red_1": "red_1" in agents}
            )
        client.end_episode(name, {"blue_0": np.full(10, number / 100, np.float32)}, truncated=True)
        client.close()
        assert course.has_rewards([1.0] * 9, "red")
        assert course.has_rewards([1.0] * 10, "blue")
        found: list[tuple[str, int, int, int]] = []
        for policy in ("red", "blue"):
            seen = (course.column("obs", policy)[:, 0] * 100).round().astype(int)
            dates = (course.column(column, policy).tolist() for column in ("env_t", "next_env_t"))
            found += zip([policy] * len(seen), seen.tolist(), *dates, strict=True)
        return sorted(found)


def test_central_critics_see_together_what_happened_together_wherever_it_was_played() -> None:
    told = turns("local")
    assert told == turns("remote")
    assert all(move == env_t for _, move, env_t, _ in told)


def test_a_policy_that_is_needed_later_leaves_the_others_the_newest_weights_to_take() -> None:
    seen = np.zeros(10, np.float32)
    with (
        Course({**TEAMS, "num_sgd_iter": 1}, trains=True) as course,
        PolicyClient(course.address, update_interval=None) as client,
        PolicyClient(course.address, "remote") as other,
    ):
        name, learned = client.start_episode(), other.start_episode()
        client.get_action(name, {"red_0": seen})
        actor = client._actor
        assert actor is not None
        first = actor._policies["red"].number
        while course.algo.iteration < 3:
            other.get_action(learned, {"red_1": seen, "blue_0": seen})
        client.get_action(name, {"red_0": seen, "blue_0": seen})
        client.update_policy_weights()
        assert client.weights_seq_no == actor._policies["red"].number
        assert actor._policies["red"].number > first


def playing_on(client: PolicyClient, rewards: int) -> None:
    name, seen = client.start_episode(), np.zeros(10, np.float32)
    for _ in range(rewards):
        client.get_action(name, {"red_0": seen, "blue_0": seen})
        client.log_returns(name, {"red_0": 1.0, "blue_0": 2.0})
    client.end_episode(name, {})


def test_who_acts_with_the_one_policy_it_knows_is_learned_from_as_that_one() -> None:
    one_policy = {"policies": ["red"], "policy_mapping_fn": lambda agent_id, **kwargs: "red"}
    with served(kind=PolicyServerInput, **{**TEAMS, "multiagent": one_policy}) as one:
        address = f"tcp://127.0.0.1:{one.envs.addresses[0][1]}"
        with one.sampling():
            before = PolicyClient(address, update_interval=None)
            playing_on(before, 3)
        one.algo.add_policy("blue", policy_mapping_fn=TEAMS["multiagent"]["policy_mapping_fn"])
        with one.sampling():
            with before, PolicyClient(address, update_interval=None) as after:
                playing_on(before, 40)
                playing_on(after, 40)
                assert after._actor is not None
                assert after._actor._policies.keys() == {"red", "blue"}
            assert settled(one)
        one.paid()
        assert sorted(one.column("rewards", "red").tolist()) == [1.0] * 83 + [2.0] * 43
        assert one.column("rewards", "blue").tolist() == [2.0] * 40


def test_a_policy_that_is_removed_costs_local_clients_nothing_but_itself() -> None:
    with served(kind=PolicyServerInput, **TEAMS) as one:
        with one.sampling():
            client = PolicyClient(f"tcp://127.0.0.1:{one.envs.addresses[0][1]}", update_interval=None)
            playing_on(client, 3)
        one.algo.remove_policy("blue", policy_mapping_fn=lambda agent_id, **kwargs: "red")
        with one.sampling():
            with client:
                client.update_policy_weights()
                playing_on(client, 40)
                assert client.weights_seq_no == one.envs.broker.weights_seq_no
            assert settled(one)
        one.paid()
        assert sorted(one.column("rewards", "red").tolist()) == [1.0] * 43 + [2.0] * 40


def test_weights_of_a_policy_that_is_removed_are_forgotten_also_where_another_one_has_its_id() -> None:
    everybody: Any = {"policy_mapping_fn": lambda agent_id, **kwargs: "red"}
    with served(kind=PolicyServerInput, **TEAMS) as one:
        published = one.algo._external_clients.publisher
        assert published is not None
        known, first = published._history.known, published.weights_seq_no
        assert known("red", first)
        assert known("blue", first)
        one.algo.remove_policy("blue", **everybody)
        published.publish()
        assert known("red", first)
        assert not known("blue", published.weights_seq_no)
        one.algo.add_policy("blue", **everybody)
        published.publish()
        second = published.weights_seq_no
        one.algo.remove_policy("blue", **everybody)
        one.algo.add_policy("blue", **everybody)
        published.publish()
        assert known("blue", published.weights_seq_no)
        assert not known("blue", second)


def test_who_plays_episodes_that_nobody_learns_from_may_play_any_number_of_them() -> None:
    seen = {"red_0": np.zeros(10, np.float32), "blue_0": np.zeros(10, np.float32)}
    with Course(TEAMS, limits=Limits(max_episodes=2)) as course, PolicyClient(course.address) as client:
        for _ in range(4):
            name = client.start_episode(training_enabled=False)
            assert client.get_action(name, seen).keys() == seen.keys()
            client.end_episode(name, {})
        assert course.algo._sampler.base_env.status()["open_episodes"] == 0


def test_agents_are_named_by_texts() -> None:
    with Course(TEAMS) as course, PolicyClient(course.address) as client:
        name = client.start_episode()
        with pytest.raises(ContractError, match="agent 0, expected a text"):
            client.get_action(name, {0: np.zeros(10, np.float32)})


def test_a_list_of_numbers_is_an_observation_too() -> None:
    with Course() as course, PolicyClient(course.address) as client:
        name = client.start_episode()
        for number in range(9):
            client.get_action(name, [0.0, 0.5, number / 1000])
            client.log_returns(name, float(number))
        client.end_episode(name, [0.0, 0.5, 0.5])
        client.close()
        assert course.has_rewards([float(number) for number in range(9)])


def test_actions_are_as_probable_as_they_were_under_the_weights_that_chose_them() -> None:
    with Course() as course, PolicyClient(course.address, update_interval=None) as client:
        name = client.start_episode()
        for number in range(4):
            client.get_action(name, observation(number))
            client.log_returns(name, float(number))
        other = policy_from_bytes(pack_bundle(course.algo.get_policy()))
        other.set_weights({key: value + 1.0 for key, value in other.get_weights().items()})
        assert client._actor is not None
        client._actor._take(SetState(weights_seq_no=99, weights={"default_policy": pack_weights(other)}))
        client.end_episode(name, observation(4))
        client.close()
        assert course.has_rewards([0.0, 1.0, 2.0, 3.0])
        obs, actions = course.column("obs"), course.column("actions")
        told, at_first, afterwards = (
            course.column("action_logp"),
            *(
                policy.networks.backend.evaluate(0, obs, None, actions).logp
                for policy in (course.algo.get_policy(), other)
            ),
        )
        assert np.allclose(told, at_first, atol=1e-5)
        assert not np.allclose(told, afterwards, atol=1e-5)
