"""What goes wrong around wrapped environments: copies for agents, groups, PettingZoo games, and old snippets.

row                                                 answer
make_multi_agent: the config                        is not changed, and reaches the copies of a name too
... equal seeds                                     each copy has its own, from the given one
... both flags for one agent                        ends that agent only
... step({}), an unknown agent                      taken; named
groups: a wrong number of actions                   named
... an agent in two groups, an unknown member       named
... a member that is missing from one dict          infos, rewards, flags may be partial; an observation not
... no spaces given, get_agent_ids                  Tuples of the members'; groups and the others
... a list as reward of an agent in no group        named by its agent, never summed
PettingZoo: no action for the selected agent        named
... the last agents end in mixed ways               the episode ends in that step
... spaces by method or by dict, late agents        work
... render, changed dicts, order of agents          work, never, PettingZoo's
snippets: int(agent_id[-1]) over player1/2          trains, and both policies play
... a mapping of one argument                       trains
... env.with_agent_groups(env, {...})               named
... reset(self, seed, options), without defaults    named
... self.env.reset(seed, options)                   EnvCrashError that keeps gymnasium's own words
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import MultiAgentEnv, PolicySpec, RandomPolicy, make_multi_agent, register_env, to_base_env
from menv.algorithms import PPO
from menv.base_env import ALL
from menv.envs import TicTacToe
from menv.errors import ContractError, EnvCrashError, MenvError
from menv.wrappers import GroupAgentsWrapper, ParallelPettingZooEnv, PettingZooEnv
from tests.bad_input.broken_envs import GOOD, SMALL, Faulty, FaultyGym, checked, refusal
from tests.wrappers_pettingzoo.small_games import Together, Turns


def told(call: Callable[[], Any]) -> str:
    """Return the one clear line with which a call is refused."""
    with pytest.raises(MenvError) as caught:
        call()
    return checked(str(caught.value))


class Drawing(gym.Env[Any, Any]):
    """Observes a draw; ends as its action says: 1 terminated, 2 truncated, 3 both."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float64)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, config: Any) -> None:
        self.size = config["size"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(1), {}

    def step(self, action: Any) -> Any:
        return self.np_random.random(1), 1.0, bool(action & 1), bool(action & 2), {}


register_env("bad_wrapping_drawing", Drawing)


@pytest.mark.parametrize("original", [Drawing, "bad_wrapping_drawing", lambda config: Drawing(config)])
def test_the_config_of_copies_is_kept_and_reaches_them(original: Any) -> None:
    config = {"num_agents": 3, "size": 7}
    env: Any = make_multi_agent(original)(config)
    assert config == {"num_agents": 3, "size": 7}
    assert [copy.size for copy in env.envs] == [7, 7, 7]
    obs, _ = env.reset(seed=5)
    assert len({float(value[0]) for value in obs.values()}) == 3
    again, _ = make_multi_agent(original)(config).reset(seed=5)
    assert again == obs


def test_a_gymnasium_id_gets_the_rest_of_its_config() -> None:
    env: Any = make_multi_agent("CartPole-v1")({"num_agents": 2, "sutton_barto_reward": True})
    env.reset(seed=0)
    assert env.step({0: 0, 1: 0})[1] == {0: 0.0, 1: 0.0}


def test_copies_end_one_by_one_and_may_stand_still() -> None:
    env: Any = make_multi_agent(Drawing)({"num_agents": 3, "size": 1})
    env.reset(seed=0)
    obs, rewards, terminateds, truncateds, _ = env.step({0: 3})
    assert (terminateds[0], truncateds[0], terminateds[ALL], truncateds[ALL]) == (True, True, False, False)
    assert set(obs) == set(rewards) == {0}
    assert env.step({})[:2] == ({}, {})
    assert "7" in told(lambda: env.step({7: 0}))
    assert "0" in told(lambda: env.step({0: 0}))
    obs, _, terminateds, truncateds, _ = env.step({1: 1, 2: 2})
    assert (terminateds[1], truncateds[1], terminateds[2], truncateds[2]) == (True, False, False, True)
    assert (terminateds[ALL], truncateds[ALL]) == (False, True)


class Team(Faulty):
    """Four agents; what a step returns can be changed part by part."""

    broken: Callable[[Any, list[Any]], None] = staticmethod(lambda env, parts: None)

    def __init__(self, context: Any = None) -> None:
        super().__init__()
        self.possible_agents = ["ann", "bob", "cid", "dan"]

    def step(self, action_dict: Any) -> Any:
        self.acted = action_dict
        parts: list[Any] = [dict(part) for part in super().step(action_dict)]
        parts[1] = {"ann": 1.0, "bob": 2.0, "cid": 4.0, "dan": 8.0}
        type(self).broken(self, parts)
        return tuple(parts)


GROUPS = {"left": ["bob", "ann"], "right": ["cid"]}


BY_GROUP = {
    **SMALL,
    "multiagent": {
        "policies": ["left", "right", "dan"],
        "policy_mapping_fn": lambda agent_id, **kwargs: agent_id,
    },
}


def grouped(broken: Callable[[Any, list[Any]], None] | None = None) -> Any:
    members = {} if broken is None else {"broken": staticmethod(broken)}
    return type("Team", (Team,), members)().with_agent_groups(GROUPS)


def test_groups_have_tuples_for_spaces_and_their_ids_beside_the_others() -> None:
    env = grouped()
    assert isinstance(env, GroupAgentsWrapper)
    assert set(env.get_agent_ids()) == {"left", "right", "dan"}
    assert env.get_observation_space("left") == gym.spaces.Tuple([Faulty().observation_space] * 2)
    assert env.get_action_space("right") == gym.spaces.Tuple([gym.spaces.Discrete(2)])
    assert env.get_action_space("dan") == gym.spaces.Discrete(2)
    obs, _ = env.reset()
    assert len(obs["left"]) == 2
    obs, rewards, *_, infos = env.step({"left": (1, 0), "right": (1,), "dan": 0})
    assert rewards == {"left": 3.0, "right": 4.0, "dan": 8.0}
    assert infos["left"]["individual_rewards"] == {"bob": 2.0, "ann": 1.0} or list(
        infos["left"]["individual_rewards"]
    ) == [2.0, 1.0]
    inner: Any = env.env
    assert inner.acted == {"bob": 1, "ann": 0, "cid": 1, "dan": 0}


@pytest.mark.parametrize("actions", [(1,), (1, 0, 1), 1, None, {"bob": 1}], ids=repr)
def test_a_wrong_number_of_actions_for_a_group_is_named_and_steps_nothing(actions: Any) -> None:
    env = grouped()
    env.reset()
    message = told(lambda: env.step({"left": actions, "right": (1,), "dan": 0}))
    assert "'left'" in message
    assert env.env.at == 0
    env.step({"left": (0, 0), "right": (1,), "dan": 0})


@pytest.mark.parametrize(
    ("groups", "name"), [({"a": ["ann"], "b": ["ann"]}, "'ann'"), ({"a": ["anna"]}, "'anna'")]
)
def test_an_agent_in_two_groups_and_an_unknown_one_are_named(groups: Any, name: str) -> None:
    assert name in told(lambda: Team().with_agent_groups(groups))
    assert name in told(lambda: GroupAgentsWrapper(Team(), groups))


def without_bob(part: int) -> Callable[[Any, list[Any]], None]:
    def broken(env: Any, parts: list[Any]) -> None:
        if part == 2:
            parts[2].update(ann=False, cid=False)
        if part == 4:
            parts[4].update(ann={"x": 1})
        parts[part].pop("bob", None)

    return broken


@pytest.mark.parametrize("part", [1, 2, 4], ids=["rewards", "terminateds", "infos"])
def test_rewards_flags_and_infos_of_a_part_of_a_group_are_taken(part: int) -> None:
    env = grouped(without_bob(part))
    env.reset()
    _, rewards, terminateds, _, _ = env.step({"left": (0, 0), "right": (0,), "dan": 0})
    assert rewards["left"] == (1.0 if part == 1 else 3.0)
    assert not terminateds.get("left")


def test_a_living_member_without_an_observation_is_named() -> None:
    env = grouped(without_bob(0))
    env.reset()
    message = told(lambda: env.step({"left": (0, 0), "right": (0,), "dan": 0}))
    assert "'left'" in message
    assert "'bob'" in message


def test_a_member_that_died_early_is_no_fault_and_nothing_that_was_paid_is_lost() -> None:
    def broken(env: Any, parts: list[Any]) -> None:
        if env.at == 2:
            parts[2]["bob"] = True
        if env.at > 2:
            parts[0].pop("bob")
            parts[1].pop("bob")

    kind = type("Team", (Team,), {"broken": staticmethod(broken)})
    with PPO(env=lambda context: kind().with_agent_groups(GROUPS), config=BY_GROUP) as algorithm:
        result = algorithm.train()
    assert result["episode_reward_mean"] == 5 * (1 + 4 + 8) + 2 * 2


def test_a_list_as_a_reward_of_an_agent_in_no_group_is_named_by_its_agent() -> None:
    def broken(env: Any, parts: list[Any]) -> None:
        parts[1]["dan"] = [1.0, 2.0]

    kind = type("Team", (Team,), {"broken": staticmethod(broken)})
    message = refusal(lambda context: kind().with_agent_groups(GROUPS), BY_GROUP, ContractError)
    assert "'dan'" in message
    assert "reward" in message


def test_the_selected_agent_needs_an_action() -> None:
    env = PettingZooEnv(Turns({"a": (6, "terminated"), "b": (6, "terminated")}))
    obs, _ = env.reset()
    assert list(obs) == ["a"]
    wrong: dict[str, int]
    for wrong in ({}, {"b": 0}, {"a": 0, "b": 0}, {"x": 0}):
        assert "'a'" in told(partial(env.step, wrong))
    assert list(env.step({"a": 0})[0]) == ["b"]


@pytest.mark.parametrize("ends", [("terminated", "truncated"), ("truncated", "terminated")])
@pytest.mark.parametrize("turns", [True, False])
def test_the_last_agents_end_an_episode_in_mixed_ways(ends: tuple[str, str], turns: bool) -> None:
    plan = {"a": (2, ends[0]), "b": (2, ends[1])}
    env: MultiAgentEnv = PettingZooEnv(Turns(plan)) if turns else ParallelPettingZooEnv(Together(plan))
    obs, _ = env.reset(seed=1)
    for _ in range(5):
        obs, _, terminateds, truncateds, _ = env.step(dict.fromkeys(obs, 0))
        if terminateds[ALL] or truncateds[ALL]:
            break
    assert (terminateds[ALL], truncateds[ALL]) == (False, True)
    flags = {agent: (terminateds.get(agent, False), truncateds.get(agent, False)) for agent in "ab"}
    assert flags == {
        agent: (end == "terminated", end == "truncated") for agent, end in zip("ab", ends, strict=True)
    }
    env.reset(seed=1)


def test_the_dicts_of_a_parallel_game_are_not_changed_and_agents_keep_their_order() -> None:
    class Keeps(Together):
        returned: Any = None

        def step(self, actions: Any) -> Any:
            self.returned = super().step(actions)
            self.copies = [dict(part) for part in self.returned]
            return self.returned

    game = Keeps({"z": (3, "terminated"), "a": (3, "terminated"), "m": (3, "terminated")})
    env = ParallelPettingZooEnv(game)
    assert list(env.possible_agents) == ["z", "a", "m"]
    obs, _ = env.reset()
    result = env.step(dict.fromkeys(obs, 0))
    assert [dict(part) for part in game.returned] == game.copies
    assert ALL in result[2]
    assert ALL not in game.returned[2]


def test_a_mapping_by_the_last_letter_of_player1_and_player2_lets_both_policies_play() -> None:
    def policy_mapping_fn(agent_id: str, episode: Any, worker: Any, **kwargs: Any) -> str:
        return "learning" if episode.episode_id % 2 == int(agent_id[-1]) % 2 else "random"

    with PPO(
        env=TicTacToe,
        config={
            "train_batch_size": 256,
            "sgd_minibatch_size": 64,
            "multiagent": {
                "policies": {"learning": PolicySpec(), "random": PolicySpec(policy_class=RandomPolicy)},
                "policy_mapping_fn": policy_mapping_fn,
                "policies_to_train": ["learning"],
            },
        },
    ) as algorithm:
        for _ in range(2):
            result = algorithm.train()
    assert set(result["policy_reward_mean"]) == {"learning", "random"}


def test_the_same_mapping_as_it_was_printed_gives_one_policy_to_both_and_still_runs() -> None:
    def policy_mapping_fn(agent_id: str, episode: Any, worker: Any, **kwargs: Any) -> str:
        return "learning" if episode.episode_id % 2 == int(agent_id[-1]) else "random"

    policies = {"learning": None, "random": PolicySpec(policy_class=RandomPolicy)}
    multiagent = {"policies": policies, "policy_mapping_fn": policy_mapping_fn}
    with PPO(env=TicTacToe, config={**SMALL, "multiagent": multiagent}) as algorithm:
        assert np.isfinite(algorithm.train()["episode_reward_mean"])


def test_a_mapping_of_one_argument_works() -> None:
    multiagent = {"policies": ["a", "b"], "policy_mapping_fn": lambda agent_id: agent_id[0]}
    with PPO(env=Faulty, config={**SMALL, "multiagent": multiagent}) as algorithm:
        assert set(algorithm.train()["policy_reward_mean"]) == {"a", "b"}


def test_a_mapping_that_draws_lots_between_the_cars_works() -> None:
    pick = random.Random(0)
    multiagent = {
        "policies": ["car1", "car2"],
        "policy_mapping_fn": lambda agent_id, episode, worker, **kwargs: pick.choice(["car1", "car2"]),
    }
    with PPO(env=Faulty, config={**SMALL, "multiagent": multiagent}) as algorithm:
        assert algorithm.train()["episode_reward_mean"] == 10.0


def test_groups_on_the_instance_itself_are_told_where_they_belong() -> None:
    env: Any = Team()
    assert "with_agent_groups" in told(lambda: env.with_agent_groups(env, GROUPS))


class NoDefaults(FaultyGym):
    """As the old guide prints it."""

    def reset(self, seed, options):  # type: ignore[no-untyped-def, override]
        return GOOD, {}


@pytest.mark.parametrize("seed", [None, 3])
def test_a_reset_without_defaults_is_called_with_both(seed: int | None) -> None:
    with PPO(env=NoDefaults, config={**SMALL, "seed": seed}) as algorithm:
        assert algorithm.train()["episode_reward_mean"] == 5.0


def test_a_positional_call_of_an_inner_reset_keeps_gymnasiums_own_words() -> None:
    class MultiEnv(gym.Env[Any, Any]):
        def __init__(self, env_config: Any) -> None:
            self.env = gym.make("CartPole-v1")
            self.action_space, self.observation_space = self.env.action_space, self.env.observation_space

        def reset(self, seed=None, options=None):  # type: ignore[no-untyped-def]
            return self.env.reset(seed, options)  # type: ignore[call-arg]

        def step(self, action: Any) -> Any:
            return self.env.step(action)

    with pytest.raises(EnvCrashError) as caught:
        PPO(env=MultiEnv, config=SMALL).train()
    assert "env 0 reset" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)
    assert "positional" in str(caught.value)


def test_an_error_of_menvs_own_inside_an_environment_keeps_its_cause() -> None:
    class Refuses(Faulty):
        def step(self, action_dict: Any) -> Any:
            raise ContractError("world: too hot, expected less; cool it down first") from KeyError("valve")

    base = to_base_env(Refuses())
    base.poll()
    base.send_actions({0: {"ann": 0, "bob": 0}})
    with pytest.raises(ContractError) as caught:
        base.poll()
    assert isinstance(caught.value.__cause__, KeyError)
