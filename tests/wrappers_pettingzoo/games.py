"""The PettingZoo games under test, family by family, kept short."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import pytest

AS_THEY_WARN = [
    # PettingZoo 1.27 asks for its new `make`, which older versions do not have; the modules are what people use.
    pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning"),
    # Box2D's bindings, of multiwalker, warn while they are imported, and crash where the warning is an error.
    pytest.mark.filterwarnings("ignore:builtin type swig:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:builtin type Swig:DeprecationWarning"),
]


@dataclass(frozen=True)
class Game:
    """How to make a game, and how long to play it.

    Attributes:
        module: Where it lives.
        maker: Its function that makes the environment.
        settings: For that function.
        polls: So many are enough for an episode or more of two copies.
        ends: Whether its episodes end at all.
        repeats_itself: Whether its observations are determined by the seed of its reset.
        quick: Whether it is played in less than a second, or is the only one of its family.
    """

    module: str
    maker: str = "env"
    settings: dict[str, Any] = field(default_factory=dict)
    polls: int = 60
    ends: bool = True
    repeats_itself: bool = True
    quick: bool = True

    @property
    def name(self) -> str:
        return f"{self.module.rpartition('.')[2]}.{self.maker}"

    def make(self) -> Any:
        return getattr(importlib.import_module(self.module), self.maker)(**self.settings)


PARALLEL = "parallel_env"
_CLASSIC = "pettingzoo.classic"
_BUTTERFLY = "pettingzoo.butterfly"
_EXAMPLES = "pettingzoo.test.example_envs"
_ARENA = {"spawn_delay": 2, "max_cycles": 120, "num_archers": 2, "num_knights": 2}

CLASSIC = [
    Game(f"{_CLASSIC}.tictactoe_v3"),
    Game(f"{_CLASSIC}.rps_v2"),
    Game(f"{_CLASSIC}.connect_four_v3", polls=120),
    Game(f"{_CLASSIC}.leduc_holdem_v4"),
    Game(f"{_CLASSIC}.texas_holdem_v4"),
]
BUTTERFLY = [
    Game(f"{_BUTTERFLY}.knights_archers_zombies_v11", settings=_ARENA, polls=900, quick=False),
    Game(f"{_BUTTERFLY}.knights_archers_zombies_v11", PARALLEL, _ARENA, 260),
    Game(f"{_BUTTERFLY}.pistonball_v6", settings={"n_pistons": 4, "max_cycles": 5}),
    Game(f"{_BUTTERFLY}.pistonball_v6", PARALLEL, {"n_pistons": 4, "max_cycles": 5}, 15),
]
SISL = [
    Game("pettingzoo.sisl.multiwalker_v9", settings={"max_cycles": 40}, polls=300, quick=False),
    Game("pettingzoo.sisl.multiwalker_v9", PARALLEL, {"max_cycles": 40}, 100),
    Game("pettingzoo.sisl.pursuit_v5", PARALLEL, {"max_cycles": 12}, 30, quick=False),
]
MPE = [
    Game("mpe2.simple_spread_v3", settings={"max_cycles": 8}, polls=80),
    Game("mpe2.simple_spread_v3", PARALLEL, {"max_cycles": 8}, 30),
    Game("mpe2.simple_tag_v3", PARALLEL, {"max_cycles": 8, "continuous_actions": True}, 30),
    Game("mpe2.simple_adversary_v3", PARALLEL, {"max_cycles": 8}, 30),
    Game("mpe2.simple_world_comm_v3", settings={"max_cycles": 4}, polls=80),
]
# Their observations are samples of spaces, not all of which they seed; so are the masks of
# generated_agents_env_action_mask_obs_v0, which allow nothing at times and end the game in another step each time.
GENERATED = [
    Game(f"{_EXAMPLES}.{module}", maker, settings, polls, ends, repeats_itself=False)
    for module, maker, settings, polls, ends in (
        ("generated_agents_env_v0", "raw_env", {"max_cycles": 20}, 800, True),
        ("generated_agents_env_v0", "env", {}, 800, False),
        ("generated_agents_env_action_mask_info_v0", "env", {}, 800, False),
        ("generated_agents_env_cust_agentid_v0", "raw_env", {"max_cycles": 20}, 800, True),
        # These count no steps: their episodes never end.
        ("generated_agents_parallel_v0", PARALLEL, {}, 150, False),
        ("generated_agents_parallel_cust_agentid_v0", PARALLEL, {}, 150, False),
    )
]
ALL_GAMES = [*CLASSIC, *BUTTERFLY, *SISL, *MPE, *GENERATED]
