"""What a group of agents observes, does and earns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import RandomPolicy, to_base_env
from menv.algorithms import PPO
from menv.base_env import ALL
from menv.errors import ContractError
from menv.multi_agent_env import AgentDict, MultiAgentEnv, StepDicts
from tests.bad_input.broken_envs import checked
from tests.contract.scripted import ACTIONS, OBS, Moment, ScriptedEnv, seen
from tests.wrappers.groups import BOTH, DEATH, playing


def test_observations_and_actions_follow_the_order_of_the_list() -> None:
    game = ScriptedEnv([[Moment("abc"), Moment("abc")]], agents="abc")
    env = game.with_agent_groups({"team": ["c", "a"]})
    obs, _ = env.reset()
    assert [seen(part).agent for part in obs["team"]] == ["c", "a"]
    assert seen(obs["b"]).agent == "b"
    sent: list[AgentDict] = []
    play = game.step

    def step(action_dict: AgentDict) -> StepDicts:
        sent.append(action_dict)
        return play(action_dict)

    game.step = step  # type: ignore[method-assign]
    env.step({"team": (3, 1), "b": 2})
    assert sent == [{"c": 3, "a": 1, "b": 2}]


def test_spaces_are_tuples_of_the_members_spaces() -> None:
    env = playing(Moment("abc"), groups={"team": ["c", "a"]})
    assert env.possible_agents == ["team", "b"]
    assert env.get_observation_space("team") == gym.spaces.Tuple([OBS, OBS])
    assert env.get_action_space("team") == gym.spaces.Tuple([ACTIONS, ACTIONS])
    assert env.get_observation_space("b") == OBS
    assert env.get_agent_ids() == {"team", "b"}
    obs, _ = env.reset()
    assert env.observation_space_contains(obs)


def test_rewards_are_summed_and_listed_separately_in_the_info() -> None:
    env = playing(Moment("ab"), Moment("ab", {"a": 1.5, "b": 2}))
    env.reset()
    _, rewards, _, _, infos = env.step({"ab": (0, 0)})
    assert rewards == {"ab": 3.5}
    assert infos["ab"]["individual_rewards"] == {"a": 1.5, "b": 2.0}
    assert infos["ab"]["individual_infos"] == {"a": {"at": 1}, "b": {"at": 1}}


def test_rewards_of_steps_without_a_group_observation_add_up_to_that_of_the_row() -> None:
    env = playing(
        Moment("abc"),
        Moment("c", {"a": 1}),
        Moment("c", {"a": 2, "b": 4}),
        Moment("ab", {"b": 8}),
        Moment("ab"),
    )
    base_env = to_base_env(env)
    base_env.poll()
    base_env.send_actions({0: {"ab": (0, 0), "c": 0}})
    for _ in range(2):
        base_env.poll()
        base_env.send_actions({0: {"c": 0}})
    ready = base_env.poll()
    assert [ready.seats[slot][1] for slot in ready.slots] == ["ab"]
    assert ready.rewards.tolist() == [15.0]
    assert ready.infos is not None
    assert ready.infos[0]["individual_rewards"] == {"a": 3.0, "b": 12.0}
    base_env.send_actions({0: {"ab": (0, 0)}})
    ready = base_env.poll()
    assert ready.infos is not None
    assert ready.infos[0]["individual_rewards"] == {}


def test_agents_without_a_group_are_unchanged() -> None:
    class Odd(MultiAgentEnv):
        possible_agents = ["a", "b", "c"]  # noqa: RUF012
        observation_space = OBS
        action_space = ACTIONS

        def reset(self, **kwargs: Any) -> tuple[AgentDict, AgentDict]:
            return dict.fromkeys("abc", np.zeros(6, np.float32)), {"__common__": 5}

        def step(self, action_dict: AgentDict) -> StepDicts:
            obs = dict.fromkeys("abc", np.zeros(6, np.float32))
            flags = {"c": True, ALL: False}
            return obs, {"a": 1, "b": 1, "c": [1, 2]}, flags, {ALL: False}, {"c": {"x": 1}, "__common__": 6}

    env = Odd().with_agent_groups(BOTH)
    assert env.reset()[1]["__common__"] == 5
    _, rewards, terminateds, truncateds, infos = env.step({"ab": (0, 0), "c": 0})
    assert rewards == {"ab": 2.0, "c": [1, 2]}
    assert terminateds == {"c": True, ALL: False}
    assert truncateds == {ALL: False}
    assert infos["c"] == {"x": 1}
    assert infos["__common__"] == 6


@pytest.mark.parametrize(("moments", "actions", "named"), [
    *((["ab", "ab"], {"ab": wrong}, "'ab'") for wrong in ((0,), (0, 0, 0), 5, {"a": 0, "b": 1}, None)),
    (["ab", "a"], {"ab": (0, 0)}, "'ab' .*'a' .*'b'"),
    (["c", "ab"], {"ab": (0, 0)}, "'ab'"), (["c", "ab"], {"a": 0}, "'a'"),
])  # fmt: skip
def test_the_group_or_member_of_a_wrong_step_is_named(moments: Any, actions: Any, named: str) -> None:
    env = playing(*map(Moment, moments))
    env.reset()
    with pytest.raises(ContractError, match=named) as caught:
        env.step(actions)
    checked(str(caught.value))
    game: Any = env.env
    assert game.step_count == (moments[1] == "a")


def test_groups_go_through_the_sampler_and_nothing_that_was_paid_is_lost() -> None:
    games: list[ScriptedEnv] = []

    def make(context: Any) -> MultiAgentEnv:
        games.append(ScriptedEnv([[*DEATH[:4], Moment("", {"a": 16}, over="truncated")]], agents="ab"))
        return games[-1].with_agent_groups(BOTH)

    config = {
        "multiagent": {"policies": {"random": RandomPolicy}},
        "num_envs_per_worker": 3,
        "batch_mode": "complete_episodes",
        "rollout_fragment_length": 40,
    }
    with PPO(env=make, config=config) as algo:
        batch = algo.sample()["random"]
        result = algo.train()
    episodes = sum(len(game.resets) - 1 for game in games)
    assert batch.count == 3 * 3 * 10
    assert batch["rewards"].sum() == 15 * 3 * 10
    assert result["unclaimed_rewards"] == 16.0 * episodes
    # What is paid after the group's end is no action's, but the group's all the same.
    assert result["group_reward_mean"] == {"ab": 31.0}
    assert result["agent_reward_mean"] == result["agent_reward_min"] == {"ab": 31.0, "a": 3.0, "b": 12.0}
    assert all(game.complaints == [] for game in games)


def test_observations_with_masks_and_states_inside_are_unchanged() -> None:
    shown = {"observation": np.zeros(2, np.float32), "action_mask": np.ones(4, np.int8), "state": [1, 2]}
    game = ScriptedEnv([[Moment("ab")]], agents="ab")
    game.reset = lambda **kwargs: ({"a": shown, "b": shown}, {})  # type: ignore[method-assign]
    obs, _ = game.with_agent_groups(BOTH).reset()
    assert obs["ab"][0] is shown
    assert obs["ab"][1] is shown
