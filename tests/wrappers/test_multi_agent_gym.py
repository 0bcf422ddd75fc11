"""Environments of gymnasium's kind in which several agents act, in tuples and in dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv import check_env
from menv.algorithms import PPO
from menv.base_env import ALL, COMMON
from menv.errors import CallOrderError, ConfigError, ContractError
from menv.registry import make_env
from menv.wrappers import MultiAgentGym

BOX = gym.spaces.Box(0.0, 99.0, (1,), np.float32)
Step = tuple[Any, Any, Any, Any, Any]


def seen(*numbers: float) -> tuple[Any, ...]:
    return tuple(np.array([number], np.float32) for number in numbers)


class Scripted(gym.Env[Any, Any]):
    """Returns what a script says, and keeps what it was given."""

    def __init__(self, observation_space: Any, action_space: Any, reset: Any, *steps: Step) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.script, self.given, self.seeds = [reset, *steps], list[Any](), list[Any]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return self.script[0]

    def step(self, action: Any) -> Any:
        self.given.append(action)
        return self.script[len(self.given)]


def three_places(reset: Any, *steps: Step) -> Scripted:
    acts = gym.spaces.Tuple(
        (gym.spaces.Discrete(4), gym.spaces.Discrete(4, start=2), gym.spaces.Box(-1, 1, (2,)))
    )
    return Scripted(gym.spaces.Tuple((BOX, BOX, BOX)), acts, reset, *steps)


def by_name(reset: Any, *steps: Step) -> Scripted:
    names = ("car", "bus", "tram")
    acts = gym.spaces.Dict({name: gym.spaces.Discrete(4) for name in names})
    return Scripted(gym.spaces.Dict(dict.fromkeys(names, BOX)), acts, reset, *steps)


class Foragers(gym.Env[Any, Any]):
    """Each of n agents earns its action; the first ends after 2 steps, the next after 3, and so on; in tuples."""

    def __init__(self, count: int = 3) -> None:
        self.observation_space = gym.spaces.Tuple((BOX,) * count)
        self.action_space = gym.spaces.Tuple((gym.spaces.Discrete(3),) * count)
        self.count, self.time = count, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return seen(*[0.0] * self.count), {}

    def step(self, action: Any) -> Any:
        alive = [self.time < 2 + place for place in range(self.count)]
        self.time += 1
        rewards = [int(chosen) if lives else 0 for chosen, lives in zip(action, alive, strict=True)]
        ended = [self.time >= 2 + place for place in range(self.count)]
        return seen(*[float(self.time)] * self.count), rewards, ended, False, {"time": self.time}


def test_places_are_agents_with_spaces_of_their_own() -> None:
    env = MultiAgentGym(three_places((seen(1, 2, 3), {})))
    assert env.possible_agents == ["agent_0", "agent_1", "agent_2"]
    assert env.get_action_space("agent_1") == gym.spaces.Discrete(4, start=2)
    assert env.get_observation_space("agent_2") == BOX
    named = MultiAgentGym(three_places((seen(1, 2, 3), {})), agents=["red", "green", "blue"])
    obs, infos = named.reset(seed=7)
    assert {agent: float(value[0]) for agent, value in obs.items()} == {"red": 1, "green": 2, "blue": 3}
    assert (infos, named.env.seeds, named.agents) == ({}, [7], ["red", "green", "blue"])


def test_lists_of_spaces_will_do() -> None:
    env = MultiAgentGym(Scripted([BOX, BOX], [gym.spaces.Discrete(2)] * 2, ([*seen(1, 2)], {})))
    assert env.possible_agents == ["agent_0", "agent_1"]
    assert [float(value[0]) for value in env.reset()[0].values()] == [1, 2]


@pytest.mark.parametrize("flags", [(True, False), (np.True_, np.False_), (False, True)])
def test_one_flag_ends_everybody_and_rewards_go_to_their_places(flags: Any) -> None:
    script = three_places((seen(1, 2, 3), {}), (seen(4, 5, 6), [0.5, 1, np.float64(2)], *flags, {"score": 3}))
    env = MultiAgentGym(script)
    env.reset()
    answers = {"agent_0": 1, "agent_1": 3, "agent_2": np.zeros(2, np.float32)}
    obs, rewards, terminateds, truncateds, infos = env.step(answers)
    assert script.given[0] == tuple(answers.values())
    assert rewards == {"agent_0": 0.5, "agent_1": 1, "agent_2": 2}
    assert list(obs) == list(answers)
    assert (terminateds, truncateds) == ({ALL: flags[0]}, {ALL: flags[1]})
    assert infos == {COMMON: {"score": 3}}
    assert env.agents == []
    with pytest.raises(CallOrderError, match="no episode is running"):
        env.step({})


@pytest.mark.parametrize("paid", [1.5, np.float32(1.5), np.array(1.5)])
def test_one_reward_is_paid_to_each_who_was_asked(paid: Any) -> None:
    two = ([False, True, False], [False] * 3)
    script = three_places(
        (seen(1, 2, 3), {}), (seen(1, 2, 3), paid, *two, {}), (seen(1, 2, 3), paid, *two, {})
    )
    env = MultiAgentGym(script)
    env.reset()
    assert env.step(dict.fromkeys(env.agents, 2))[1] == dict.fromkeys(env.possible_agents, 1.5)
    assert env.step({"agent_0": 2, "agent_2": 2})[1] == {"agent_0": 1.5, "agent_2": 1.5}


def test_places_of_agents_that_have_ended_are_filled_and_not_seen_again() -> None:
    steps = [
        (seen(4, 5, 6), [1, 2, 3], [False, True, False], np.zeros(3, bool), [{"a": 1}, {"b": 2}, {}]),
        (seen(7, 8, 9), [1, 0, 3], [False, True, False], np.array([False, False, True]), [{}, {}, {"c": 3}]),
        (seen(7, 8, 9), [1, 0, 0], [True, True, False], np.array([False, False, True]), {}),
    ]
    script = three_places((seen(1, 2, 3), {}), *steps)
    env = MultiAgentGym(script)
    env.reset()
    still = np.ones(2, np.float32)
    obs, _, terminateds, _, infos = env.step({"agent_0": 1, "agent_1": 3, "agent_2": still})
    assert float(obs["agent_1"][0]) == 5
    assert terminateds == {"agent_0": False, "agent_1": True, "agent_2": False, ALL: False}
    assert infos == {"agent_0": {"a": 1}, "agent_1": {"b": 2}, "agent_2": {}}
    assert env.agents == ["agent_0", "agent_2"]
    obs, rewards, terminateds, truncateds, _ = env.step({"agent_0": 1, "agent_2": still})
    assert script.given[1][:2] == (1, 2)
    assert list(obs) == ["agent_0", "agent_2"]
    assert rewards == {"agent_0": 1, "agent_1": 0, "agent_2": 3}
    assert (terminateds, truncateds[ALL]) == ({"agent_0": False, "agent_2": False, ALL: False}, False)
    assert truncateds["agent_2"]
    obs, _, terminateds, truncateds, _ = env.step({"agent_0": 0})
    assert script.given[2][:2] == (0, 2)
    assert script.given[2][2].tolist() == [0, 0]
    assert (list(obs), terminateds[ALL], truncateds[ALL]) == (["agent_0"], True, False)


def test_whoever_was_cut_in_the_last_step_makes_it_a_truncation() -> None:
    script = three_places(
        (seen(1, 2, 3), {}), (seen(1, 2, 3), 0.0, [True, True, False], [False, False, True], {})
    )
    env = MultiAgentGym(script)
    env.reset()
    _, _, terminateds, truncateds, _ = env.step({"agent_0": 1, "agent_1": 3, "agent_2": np.zeros(2)})
    assert (terminateds[ALL], truncateds[ALL]) == (False, True)


def test_agents_of_a_dict_are_left_out_end_and_come_back() -> None:
    one, two, three = seen(1, 2, 3)
    off: dict[str, bool] = {}
    steps = [
        ({"car": one, "bus": two}, {"car": 1.0, "bus": 2.0}, {"bus": True}, off, {}),
        ({"car": one, "bus": two}, {"car": 1.0}, {"bus": True}, off, {"car": {"x": 1}, "bus": {}}),
        ({"bus": three, "tram": one}, {"car": 1.0}, off, off, {"reason": "jam"}),
        ({}, {"bus": 4.0}, {"bus": True, "car": True}, {"tram": True}, {}),
    ]
    script = by_name(({"car": one}, {"car": {"first": True}}), *steps)
    env = MultiAgentGym(script)
    assert env.reset() == ({"car": one}, {"car": {"first": True}})
    obs, rewards, terminateds, _, _ = env.step({"car": 1})
    assert (list(obs), rewards, env.agents) == (["car", "bus"], {"car": 1.0, "bus": 2.0}, ["car"])
    assert terminateds == {"bus": True, ALL: False}
    obs, _, terminateds, _, infos = env.step({"car": 2})
    assert (list(obs), terminateds, infos) == (["car"], {ALL: False}, {"car": {"x": 1}})
    obs, _, _, _, infos = env.step({"car": 3})
    # The car waits somewhere; the bus lives once more.
    assert (list(obs), infos) == (["bus", "tram"], {COMMON: {"reason": "jam"}})
    assert env.agents == ["car", "bus", "tram"]
    _, _, terminateds, truncateds, _ = env.step({"bus": 0, "tram": 0})
    assert script.given == [{"car": 1}, {"car": 2}, {"car": 3}, {"bus": 0, "tram": 0}]
    assert terminateds == {"bus": True, "car": True, ALL: False}
    assert truncateds == {"tram": True, ALL: True}


def test_an_episode_goes_on_while_somebody_who_is_not_shown_lives() -> None:
    one = seen(1)[0]
    script = by_name(
        ({"car": one, "bus": one}, {}),
        ({"car": one}, 0.0, False, False, {}),
        ({}, 0.0, {"car": True}, {}, {}),
        ({"bus": one}, {"bus": 1.0}, {"car": True, ALL: False}, {}, {}),
    )
    env = MultiAgentGym(script)
    env.reset()
    env.step({"car": 0, "bus": 0})
    assert env.step({"car": 0})[2] == {"car": True, ALL: False}
    assert list(env.step({})[0]) == ["bus"]


def test_the_checker_finds_nothing_and_ppo_trains_with_a_policy_for_each() -> None:
    assert check_env(lambda context: MultiAgentGym(Foragers())) == []
    algo = PPO(
        env=lambda context: MultiAgentGym(Foragers()),
        config={
            "num_envs_per_worker": 2,
            "rollout_fragment_length": 8,
            "train_batch_size": 16,
            "seed": 0,
            "multiagent": {
                "policies": ["agent_0", "agent_1", "agent_2"],
                "policy_mapping_fn": lambda agent_id, episode, worker, **kwargs: agent_id,
            },
        },
    )
    batches = algo.sample().policy_batches
    # Episodes have 4 steps, of which the agents play 2, 3 and 4.
    assert [len(batches[f"agent_{place}"]) for place in range(3)] == [8, 12, 16]
    for batch in batches.values():
        assert batch["rewards"].tolist() == batch["actions"].tolist()
    result = algo.train()
    assert result["episode_len_mean"] == 4
    algo.stop()


def test_ended_rows_hold_the_last_observation_of_each_agent() -> None:
    algo = PPO(
        env=lambda context: MultiAgentGym(Foragers(2)),
        config={"num_envs_per_worker": 1, "rollout_fragment_length": 3, "train_batch_size": 3, "seed": 0},
    )
    batch = algo.sample().policy_batches["default_policy"]
    assert batch["terminateds"].sum() == 2
    assert sorted(batch["new_obs"][batch["terminateds"]].ravel().tolist()) == [2.0, 3.0]
    algo.stop()


def bad_step(*values: Any) -> Callable[[], Any]:
    def run() -> Any:
        env = MultiAgentGym(three_places((seen(1, 2, 3), {}), values))
        env.reset()
        return env.step({"agent_0": 1, "agent_1": 3, "agent_2": np.zeros(2)})

    return run


def bad_names(agents: Any) -> Callable[[], Any]:
    return lambda: MultiAgentGym(three_places((seen(1, 2, 3), {})), agents=agents)


def answered(answers: dict[str, Any]) -> Any:
    env = MultiAgentGym(by_name(({"car": seen(1)[0]}, {})))
    env.reset()
    return env.step(answers)


REFUSED: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    (
        "one_agent",
        lambda: MultiAgentGym(gym.make("CartPole-v1")),
        ConfigError,
        "pass on an environment of one agent",
    ),
    ("no_env", lambda: MultiAgentGym(3), ConfigError, "observation_space of int is None"),
    (
        "unlike",
        lambda: MultiAgentGym(Scripted(gym.spaces.Tuple((BOX, BOX)), [gym.spaces.Discrete(2)], None)),
        ConfigError,
        "2 observation spaces in a tuple and 1 action spaces",
    ),
    (
        "other_keys",
        lambda: MultiAgentGym(Scripted({"a": BOX}, {"b": gym.spaces.Discrete(2)}, None)),
        ConfigError,
        "expected the same agents in both",
    ),
    ("too_few_names", bad_names(["red"]), ConfigError, "expected 3 different names"),
    ("one_name_twice", bad_names(["red", "red", "blue"]), ConfigError, "expected 3 different names"),
    ("a_text", bad_names("rgb"), ConfigError, "expected 3 different names"),
    (
        "two_obs",
        bad_step(seen(1, 2), 0.0, False, False, {}),
        ContractError,
        "observations that are a tuple of 2",
    ),
    (
        "one_obs",
        bad_step(1.0, 0.0, False, False, {}),
        ContractError,
        "observations that are a float, expected a dict",
    ),
    (
        "two_rewards",
        bad_step(seen(1, 2, 3), [1, 2], False, False, {}),
        ContractError,
        "rewards that are a list of 2",
    ),
    (
        "two_flags",
        bad_step(seen(1, 2, 3), 0.0, [True, True], False, {}),
        ContractError,
        "flags that are a list of 2",
    ),
    (
        "none_as_flag",
        bad_step(seen(1, 2, 3), 0.0, [None] * 3, False, {}),
        ContractError,
        "flag of 'agent_0' is NoneType",
    ),
    (
        "text_as_flag",
        bad_step(seen(1, 2, 3), 0.0, "no", False, {}),
        ContractError,
        "terminated or truncated is str",
    ),
    (
        "no_info",
        bad_step(seen(1, 2, 3), 0.0, False, False, None),
        ContractError,
        "an info that is a NoneType",
    ),
    ("four", bad_step(seen(1, 2, 3), 0.0, False, {}), ContractError, "split the old `done`"),
    (
        "stranger",
        bad_step({"agent_9": 1}, 0.0, False, False, {}),
        ContractError,
        "observations of 'agent_9', expected",
    ),
    ("too_early", lambda: MultiAgentGym(Foragers()).step({}), CallOrderError, "call reset"),
    ("nobody_answered", lambda: answered({}), ContractError, "actions missing for"),
    ("others_answered", lambda: answered({"car": 0, "bus": 0}), ContractError, "not expected from"),
]


@pytest.mark.parametrize(
    ("run", "error", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_has_another_form_is_refused_in_one_line(
    run: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        run()
    message = str(caught.value)
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "values",
    [
        ([1.0, 2.0], False),
        ([1.0, 2.0], True),
        ({"agent_0": 1.0}, False),
        (0.0, [True, False]),
        (0.0, {"agent_0": True}),
        (0.0, np.array([True, False])),
    ],
    ids=str,
)
def test_an_environment_of_many_agents_that_is_passed_on_as_one_is_told_of_the_wrapper(values: Any) -> None:
    reward, flag = values
    spaces = gym.spaces.Tuple((BOX, BOX)), gym.spaces.Tuple((gym.spaces.Discrete(2),) * 2)
    algo = PPO(
        env=lambda context: Scripted(*spaces, (seen(1, 2), {}), (seen(3, 4), reward, flag, False, {})),
        config={"rollout_fragment_length": 1, "train_batch_size": 1},
    )
    with pytest.raises(
        ContractError,
        match=r"from menv\.MultiAgentEnv instead of gymnasium\.Env \(menv\.wrappers\.MultiAgentGym wraps one",
    ):
        algo.sample()
    algo.stop()


def test_an_environment_that_counts_its_agents_is_wrapped_without_being_asked() -> None:
    class Counted(Foragers):
        n_agents = 3

    assert isinstance(make_env(Counted), MultiAgentGym)
    # A Tuple of as many parts as there are agents is needed: of these, one agent acts on all parts.
    assert isinstance(make_env(lambda context: Counted(count=2)), Counted)
    assert isinstance(make_env(Foragers), Foragers)
