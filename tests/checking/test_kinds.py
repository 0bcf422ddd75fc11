"""Every kind of environment is checked: right ones are found right, and the faults of each kind are named."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList

from menv import to_base_env
from menv.checking import check_env
from menv.envs.tictactoe import TicTacToe
from menv.vector_env import VectorEnv
from tests.bad_input.broken_envs import UNIT, FaultyGym
from tests.contract.scripted import IRREGULAR, TOGETHER, TURNS, ScriptedEnv, SixDicts
from tests.worlds import TWO, InDicts, Several, like


def codes(env: Any, **settings: Any) -> list[str]:
    return [found.code for found in check_env(env, **settings)]


@pytest.mark.slow_unless("*SAME_STEP")
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("Blackjack-v1", marks=pytest.mark.slow)])
def test_a_gymnasium_vector_environment_is_right_in_each_autoreset_mode(name: str, mode: Any) -> None:
    def creator(context: Any) -> Any:
        settings = {"autoreset_mode": mode}
        return gym.make_vec(name, num_envs=3, vectorization_mode="sync", vector_kwargs=settings)

    assert codes(creator, env_steps=200) == []
    assert codes(lambda context: DictInfoToList(creator(context)), env_steps=200) == []


def test_a_natively_vectorised_environment_is_right() -> None:
    def creator(context: Any) -> Any:
        return gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")

    assert codes(creator, env_steps=200) == []


class Batch(gym.vector.VectorEnv[Any, Any, Any]):
    """Three sub-environments, five env steps an episode, whose observations are chance."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, context: Any = None) -> None:
        self.num_envs = 3
        self.single_observation_space = UNIT
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(UNIT, 3)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 3)
        self.at = 0

    def look(self) -> Any:
        return self.np_random.random((3, 3), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self.look(), {}

    def step(self, actions: Any) -> Any:
        self.at += 1
        return self.look(), np.ones(3), np.full(3, self.at % 6 == 5), np.zeros(3, np.bool_), {}


def test_a_vector_environment_written_by_hand_is_right() -> None:
    assert codes(Batch) == []


def test_sub_environments_of_one_batch_that_share_their_episodes_are_named() -> None:
    (found,) = check_env(like(Batch, look=lambda self: np.tile(self.np_random.random(3, np.float32), (3, 1))))
    assert found.code == "ME062"
    assert re.search("env 0 .*env 1", found.message)


def make_cart_poles(context: Any) -> Any:
    return VectorEnv.vectorize_gym_envs(lambda index: gym.make("CartPole-v1"), num_envs=3)


def test_an_environment_of_lists_is_right() -> None:
    assert codes(make_cart_poles, env_steps=200) == []


class Buffered(FaultyGym):
    """Begins elsewhere each time, and writes all observations into one array."""

    def __init__(self, context: Any = None) -> None:
        super().__init__()
        self.buffer = np.zeros(3, np.float32)

    def see(self) -> Any:
        if not self.at:
            self.buffer[1] = self.np_random.random()
        self.buffer[0] = self.at / 10
        return self.buffer


# Returns copies.
Fresh = like(Buffered, see=lambda self: Buffered.see(self).copy())


@pytest.mark.slow_unless("*SAME_STEP-Sync*")
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_last_observation_that_the_reset_writes_over_is_found(kind: Any, mode: AutoresetMode) -> None:
    def creator(env: Any) -> Any:
        return lambda context: kind([env, env], autoreset_mode=mode)

    found = codes(creator(Buffered), env_steps=60)
    assert ("ME101" in found) == (mode == AutoresetMode.SAME_STEP)
    assert "ME101" not in codes(creator(Fresh), env_steps=60)


class LateChance(FaultyGym):
    """Draws nothing before env step 11, and then a number."""

    length, begins, chance = 15, 11, 1.0

    def see(self) -> Any:
        if not self.at:
            self.drawn = 0.0
        if self.at == self.begins and self.np_random.random() < self.chance:
            self.drawn = self.np_random.random()
        return np.array([self.drawn, 0, 0], np.float32)


class RareChance(LateChance):
    """Draws at its second env step whether one of twenty episodes is another one."""

    begins, chance = 2, 0.05


class DrawsWhoBegins(Several):
    """Two agents have a turn each; the first one is drawn."""

    observation_space, length = TWO, 2

    def shown(self) -> Any:
        return [self.order[self.at]] if self.at < 2 else self.possible_agents

    def see(self, agent: Any) -> int:
        return int(self.at == 2)

    def pay(self, actions: Any) -> Any:
        return {"a": 1.0, "b": -1.0} if self.at == 2 else {}

    def observe(self) -> Any:
        if not self.at:
            self.order = self.rng.permutation(["a", "b"]).tolist()
        return super().observe()


def test_the_order_in_which_agents_appear_may_be_drawn() -> None:
    assert [check_env(DrawsWhoBegins, seed=seed) for seed in range(8)] == [[]] * 8


@pytest.mark.slow_unless("0-LateChance", "3-RareChance")
@pytest.mark.parametrize("env", [LateChance, RareChance])
@pytest.mark.parametrize("seed", range(4))
def test_late_or_rare_randomness_is_not_a_finding(env: Any, seed: int) -> None:
    assert codes(env, seed=seed, env_steps=60) == []
    batch = codes(lambda context: SyncVectorEnv([env] * 4), seed=seed, env_steps=60)
    assert batch == []


@pytest.mark.parametrize(
    "flags", [gym.spaces.MultiBinary(2), gym.spaces.Box(0.0, 1.0, (2,), np.float32)], ids=str
)
def test_a_mask_under_another_name_is_found(flags: gym.Space[Any]) -> None:
    masked = like(
        FaultyGym,
        observation_space=gym.spaces.Dict({"unit": UNIT, "state": gym.spaces.Dict({"avail_actions": flags})}),
        see=lambda self: {
            "unit": np.zeros(3, np.float32),
            "state": {"avail_actions": np.ones(2, flags.dtype)},
        },
    )
    (found,) = check_env(masked)
    assert found.code == "ME054"
    assert "obs['state']['avail_actions']" in found.message


def test_an_environment_in_table_form_is_right() -> None:
    make = {"gym": lambda index: gym.make("CartPole-v1"), "agents": lambda index: TicTacToe({})}
    for kind in make.values():
        assert codes(lambda context, kind=kind: to_base_env(kind(0), kind, 3), env_steps=200) == []


@pytest.mark.slow_unless("turns-new id", "together-later", "irregular-now")
@pytest.mark.parametrize("mode", ["now", "later", "new id"])
@pytest.mark.parametrize("script", [TURNS, TOGETHER, IRREGULAR], ids=["turns", "together", "irregular"])
def test_an_own_base_env_has_no_error_however_it_resets(mode: str, script: Any) -> None:
    def creator(context: Any) -> Any:
        return SixDicts([ScriptedEnv(script, world) for world in range(2)], mode)

    findings = check_env(creator)
    assert [found for found in findings if found.severity == "error"] == []
    # The scripts do these on purpose.
    assert {found.code for found in findings} <= {"ME040", "ME102"}


class Own(InDicts):
    """A user's own, whose ids are strings."""

    ids = ("left", "right")


def own(method: str, replacement: Any) -> Any:
    return type("Wrong", (Own,), {method: replacement})


def test_an_own_base_env_is_right() -> None:
    assert codes(Own) == []


@pytest.mark.parametrize(
    ("env", "code", "message"),
    [
        (own("poll", lambda self, timeout=None: Own.poll(self)[:5]), "ME020", "poll: "),
        (own("poll", lambda self, timeout=None: ([], *Own.poll(self)[1:])), "ME021", "obs"),
        (own("poll", lambda self, timeout=None: 1 / 0), "ME090", "ZeroDivisionError"),
        (own("send_actions", lambda self, slots, actions=None: 1 / 0), "ME090", "send_actions"),
        (own("try_reset", lambda self, env_id=None: ({env_id: 3}, {})), "ME012", "int"),
        (own("try_reset", lambda self, env_id=None: 3), "ME011", "try_reset: "),
        (own("stop", lambda self: 1 / 0), "ME080", "ZeroDivisionError"),
        (own("observation_space", None), "ME001", "observation space"),
    ],
    ids=["five", "list", "poll", "send", "reset", "single", "stop", "space"],
)  # fmt: skip
def test_a_fault_of_an_own_base_env_is_named(env: Any, code: str, message: str) -> None:
    (found,) = check_env(env)
    assert found.code == code
    assert message in found.message


def test_a_polled_environment_that_stops_answering_is_named() -> None:
    class Silent(Own):
        def try_reset(self, env_id: Any = None, *, seed: Any = None, options: Any = None) -> Any:
            return "async_reset_return", "async_reset_return"

    assert codes(Silent, env_steps=3000) == ["ME045"]


class OldApi:
    """The API from before gym 0.26."""

    observation_space = UNIT
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: Any = None) -> None:
        pass

    def reset(self) -> Any:
        return np.zeros(3, np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 1.0, True, {}


def test_an_environment_of_the_old_api_is_sent_to_its_wrapper() -> None:
    for env in (OldApi, OldApi()):
        (found,) = check_env(env)
        assert (found.code, found.severity) == ("ME007", "error")
        assert "menv.wrappers.LegacyGym" in found.fix


def test_a_gymnasium_environment_with_an_old_reset_is_pointed_to_the_wrapper_too() -> None:
    (found,) = check_env(like(FaultyGym, reset=lambda self, **kwargs: FaultyGym.reset(self, **kwargs)[0]))
    assert found.code == "ME011"
    assert "menv.wrappers.LegacyGym" in found.fix


class LikeParallel:
    possible_agents: ClassVar[list[str]] = ["a"]

    def observation_space(self, agent: str) -> Any: ...


LikeTurns = like(LikeParallel, agent_iter=lambda self: None)


def test_what_looks_like_an_environment_of_pettingzoo_is_sent_to_its_wrapper() -> None:
    for kind, wrapper in ((LikeTurns, "PettingZooEnv"), (LikeParallel, "ParallelPettingZooEnv")):
        (found,) = check_env(kind)
        assert (found.code, found.severity) == ("ME007", "error")
        assert wrapper in found.fix


@pytest.mark.parametrize("shared", [True, False])
def test_copies_that_share_an_object_are_found_even_if_they_use_global_generators(shared: bool) -> None:
    positions: dict[str, int] = {}

    class Train(gym.Env[Any, Any]):
        observation_space = gym.spaces.Discrete(1000)
        action_space = gym.spaces.Discrete(2)

        def __init__(self, context: Any = None) -> None:
            self.positions = positions if shared else {}

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if seed is not None:
                np.random.seed(seed)
            self.positions["train"] = int(np.random.randint(100))
            return self.positions["train"], {}

        def step(self, action: Any) -> Any:
            self.positions["train"] += 1 + int(np.random.randint(3))
            return self.positions["train"], 0.0, self.positions["train"] > 200, False, {}

    found = codes(Train)
    assert "ME061" in found
    assert ("ME076" in found) == shared
