"""What is no PettingZoo environment, or none of the right kind, and games that break the rules: one clear line."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from typing import Any

import gymnasium as gym
import pytest
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from menv import check_env
from menv.envs import RockPaperScissors
from menv.errors import CallOrderError, ConfigError, ContractError, MenvError, MissingExtraError
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.house.sources import ROOT
from tests.worlds import like
from tests.wrappers_pettingzoo import small_games
from tests.wrappers_pettingzoo.small_games import OBS, Together, Turns

PLAN = {"a": (6, "terminated"), "b": (6, "terminated")}
WRAPPERS = [PettingZooEnv, ParallelPettingZooEnv]


def line(error: pytest.ExceptionInfo[MenvError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert "expected" in message
    return message


@pytest.mark.parametrize("given", [
    small_games, Turns, Together, RockPaperScissors(), "tictactoe_v3", lambda: None,
], ids=lambda given: getattr(given, "__name__", type(given).__name__))  # fmt: skip
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_cannot_be_wrapped_is_refused(wrapper: Any, given: Any) -> None:
    with pytest.raises(ConfigError, match=wrapper.__name__) as error:
        wrapper(given)
    line(error)


@pytest.mark.parametrize(("wrapper", "other", "game"), [(*WRAPPERS, Together), (*WRAPPERS[::-1], Turns)])
def test_a_game_of_the_other_kind_names_its_wrapper(wrapper: Any, other: Any, game: Any) -> None:
    with pytest.raises(ConfigError, match=rf"\b{other.__name__}\b"):
        wrapper(game(PLAN))


def test_without_pettingzoo_the_message_holds_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as error:
        PettingZooEnv(None)
    assert 'pip install "menv-rl[pettingzoo]"' in line(error)


DUCK = """
import sys
sys.modules["pettingzoo"] = None  # importing it fails
import gymnasium as gym
from menv import to_base_env
from menv.wrappers import ParallelPettingZooEnv

class Duck:
    possible_agents = ["a"]
    def observation_space(self, agent): return gym.spaces.Discrete(5)
    action_space = observation_space
    def reset(self, seed=None, options=None):
        self.agents, self.at = ["a"], 0
        return {"a": 0}, {"a": {}}
    def step(self, actions):
        self.at += 1
        if self.at == 4: self.agents = []
        return {"a": self.at}, {"a": 1.0}, {"a": self.at == 4}, {"a": False}, {"a": {}}

base_env = to_base_env(ParallelPettingZooEnv(Duck()))
for _ in range(9):
    ready = base_env.poll()
    if ready.ended: print(ready.ended[0].obs, ready.ended[0].terminated)
    base_env.send_actions(ready.slots, [0] * len(ready.slots))
"""


def test_a_game_that_only_looks_like_pettingzoos_needs_no_pettingzoo() -> None:
    done = subprocess.run([sys.executable, "-c", DUCK], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["4", "True", "4", "True"], done.stderr


@pytest.mark.parametrize(("make", "actions"), [
    *((lambda: PettingZooEnv(Turns(PLAN)), wrong) for wrong in ({}, {"b": 0}, {"a": 0, "b": 0}, {"c": 0})),
    *((lambda: ParallelPettingZooEnv(Together(PLAN)), wrong) for wrong in ({}, {"a": 0}, {"a": 0, "b": 0, "c": 0})),
])  # fmt: skip
def test_exactly_the_agents_that_wait_may_be_answered(make: Any, actions: dict[str, int]) -> None:
    env = make()
    env.reset()
    with pytest.raises(ContractError, match="actions") as error:
        env.step(actions)
    line(error)


@pytest.mark.parametrize(
    "env",
    [PettingZooEnv(Turns({"a": (1, "truncated")})), ParallelPettingZooEnv(Together({"a": (1, "truncated")}))],
)
def test_a_step_before_the_reset_or_after_the_end_is_refused(env: Any) -> None:
    with pytest.raises(CallOrderError, match="reset"):
        env.step({"a": 0})
    env.reset()
    env.step({"a": 0})
    with pytest.raises(CallOrderError, match="reset"):
        env.step({})


SeedlessTurns = like(Turns, reset=lambda self: Turns.reset(self))
SeedlessTogether = like(Together, reset=lambda self: Together.reset(self))


@pytest.mark.parametrize(
    "make",
    [
        lambda: PettingZooEnv(SeedlessTurns(PLAN)),
        lambda: PettingZooEnv(OrderEnforcingWrapper(SeedlessTurns(PLAN))),
        lambda: ParallelPettingZooEnv(SeedlessTogether(PLAN)),
    ],
)
def test_a_game_that_takes_no_seed_is_named_when_one_is_given(make: Any) -> None:
    with pytest.raises(ContractError) as error:
        make().reset(seed=3)
    assert "seed=None, options=None" in line(error)


def without_terminations(self: Any, seed: int | None = None, options: Any = None) -> None:
    Turns.reset(self, seed, options)
    del self.terminations


def lost(self: Any, action: Any) -> None:
    Turns.step(self, action)
    self.agent_selection = "nobody"


# Observations alone and `dones` are those of a PettingZoo before 1.22.
BROKEN: dict[str, tuple[Any, Any, dict[str, Any], dict[str, int], str]] = {
    "obs alone": (
        ParallelPettingZooEnv, Together, {"reset": lambda self, seed=None, options=None: Together.reset(self, seed)[0]},
        {}, r"together: .*dict.*\(obs, infos\)",
    ),
    "dones": (
        ParallelPettingZooEnv, Together, {"step": lambda self, actions: (*Together.step(self, actions)[:3], {})},
        {"a": 0, "b": 0}, "together: .*4 values",
    ),
    "no terminations": (PettingZooEnv, Turns, {"reset": without_terminations}, {}, "turns .*`terminations`"),
    "nobody's turn": (PettingZooEnv, Turns, {"step": lost}, {"a": 0}, "turns .*'nobody'"),
    "a dead agent that stays": (PettingZooEnv, Turns, {"_dead_step": lambda self, agent: None}, {"a": 0}, "turns"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_game_that_breaks_the_rules_is_named(case: str) -> None:
    wrapper, game, members, actions, named = BROKEN[case]
    plan = {"a": (1, "terminated"), "b": (6, "terminated")} if "dead" in case else PLAN
    env = wrapper(like(game, **members)(plan))
    if actions:
        env.reset()
    with pytest.raises(ContractError, match=named) as error:
        env.step(actions) if actions else env.reset()
    line(error)


@pytest.mark.parametrize(("wrapper", "game"), [(PettingZooEnv, Turns), (ParallelPettingZooEnv, Together)])
def test_an_agent_without_a_space_is_named(wrapper: Any, game: Any) -> None:
    with pytest.raises(ContractError) as error:
        wrapper(spaceless(game, PLAN)).get_action_space("a")
    assert re.search("action.*'a'", line(error))


def spaceless(game: Any, plan: Any) -> Any:
    """Return a game without spaces of any kind."""
    made = type(
        "Spaceless", (game,), {"action_space": None, "observation_space": None, "observation_spaces": {}}
    )
    return made(plan)


@pytest.mark.parametrize(("wrapper", "game"), [(PettingZooEnv, Turns), (ParallelPettingZooEnv, Together)])
def test_a_game_with_only_the_dicts_of_spaces_works(wrapper: Any, game: Any) -> None:
    base = game.__mro__[1]
    only_dicts = {
        "observation_space": base.observation_space,
        "action_space": base.action_space,
        "observation_spaces": {"a": OBS},
        "action_spaces": {"a": gym.spaces.Discrete(2)},
    }
    env = wrapper(type("OnlyDicts", (game,), only_dicts)({"a": (3, "terminated")}))
    assert env.get_observation_space("a") is OBS
    assert env.get_action_space("a") == gym.spaces.Discrete(2)


class FirstStrike(Turns):
    """The first player wins at once; the other one is paid without a turn."""

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards = {"a": 1.0, "b": -1.0}
        self.terminations = {"a": True, "b": True}
        self.agent_selection = "b"


def test_the_checker_names_a_player_that_is_paid_without_a_turn() -> None:
    found = {finding.code: finding for finding in check_env(lambda context: FirstStrike(PLAN))}
    assert "agent 'b': " in found["ME102"].message
