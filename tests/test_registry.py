"""register_env, resolve_env and make_env, with real modules and real gymnasium ids."""

import functools
import re
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from menv import registry, to_base_env
from menv.env_context import EnvContext
from menv.errors import ConfigError, ContractError, EnvCrashError, MissingExtraError, UnknownNameError
from menv.registry import describe_env, make_env, register_env, resolve_env
from menv.wrappers import OpenSpielEnv, ParallelPettingZooEnv, PettingZooEnv, VmasEnv

SHOP = """
    import gymnasium as gym

    class Corridor(gym.Env):
        observation_space = gym.spaces.Discrete(5)
        action_space = gym.spaces.Discrete(2)

        def __init__(self, context=None, length=0):
            self.context = context
            self.length = length

    class Outer:
        class Inner:
            def __init__(self, context):
                self.context = context

    size = 5
    gym.register("ShopCorridor-v0", entry_point=Corridor, disable_env_checker=True, order_enforce=False)
    gym.register("ShopUnversioned", entry_point=Corridor, disable_env_checker=True, order_enforce=False)
    gym.register("Corridor", entry_point=Outer, disable_env_checker=True, order_enforce=False)
"""


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are forgotten after it."""
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `menv_shop.games` on disk whose import registers gymnasium ids."""
    package = tmp_path / "menv_shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "games.py").write_text(textwrap.dedent(SHOP))
    (package / "broken.py").write_text("import a_package_that_is_not_installed\n")
    (package / "wrong.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    known = dict(gym.registry)
    yield
    for name in [name for name in sys.modules if name.startswith("menv_shop")]:
        del sys.modules[name]
    gym.registry.clear()
    gym.registry.update(known)


class Game:
    """An environment of no particular kind."""

    def __init__(self, context: EnvContext) -> None:
        self.context = context


def make_game(context: EnvContext, size: int = 0) -> Game:
    game = Game(context)
    game.context["size"] = size
    return game


def test_a_registered_name_creates_with_settings_and_place() -> None:
    register_env("game", lambda context: Game(context))
    game = make_env("game", EnvContext({"size": 5}, worker_index=1, vector_index=2))
    assert game.context == {"size": 5}
    assert (game.context.worker_index, game.context.vector_index) == (1, 2)


def test_registering_a_name_again_replaces_the_creator() -> None:
    register_env("game", lambda context: "first")
    register_env("game", lambda context: "second")
    assert make_env("game") == "second"


def test_a_registered_name_goes_before_built_in_names_and_gymnasium_ids() -> None:
    for name in ("tictactoe", "CartPole-v1", "os.path:join"):
        register_env(name, Game)
        assert isinstance(make_env(name), Game)


@pytest.mark.parametrize("creator", [None, 5, "Game", Game(EnvContext())])
def test_a_creator_that_cannot_be_called_is_refused(creator: Any) -> None:
    with pytest.raises(ConfigError, match="register_env"):
        register_env("game", creator)


@pytest.mark.parametrize("name", ["", None, 5, Game])
def test_only_a_string_that_is_not_empty_can_be_registered(name: Any) -> None:
    with pytest.raises(ConfigError):
        register_env(name, Game)


@pytest.mark.parametrize(
    "env", [Game, make_game, lambda context: Game(context), functools.partial(make_game, size=3)]
)
def test_classes_functions_lambdas_and_partials_are_called_with_the_context(env: Any) -> None:
    context = EnvContext({"size": 1}, worker_index=4)
    game = resolve_env(env)(context)
    assert game.context is context
    assert make_env(env, context).context.worker_index == 4


def test_a_parameter_named_like_a_setting_gets_that_setting() -> None:
    def build(size: int) -> Game:
        return Game(EnvContext({"size": size + 1}))

    assert make_env(build, {"size": 3}).context == {"size": 4}


def test_a_game_of_openspiel_is_wrapped() -> None:
    pyspiel = pytest.importorskip("pyspiel")
    env = make_env(pyspiel.load_game("leduc_poker"))
    assert env.possible_agents == ["player_0", "player_1"]


def test_a_gymnasium_class_is_called_with_the_context() -> None:
    class Corridor(gym.Env[int, int]):
        def __init__(self, context: EnvContext) -> None:
            self.size = context["size"]

    assert make_env(Corridor, EnvContext({"size": 7})).size == 7


@pytest.mark.parametrize("gym_id", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_a_gymnasium_id_is_made_with_the_settings_as_keywords(gym_id: str) -> None:
    env = make_env(gym_id, EnvContext({"max_episode_steps": 7, "sutton_barto_reward": True}))
    assert env.spec.id == "CartPole-v1"
    assert env.spec.max_episode_steps == 7
    assert env.spec.kwargs["sutton_barto_reward"] is True


def test_a_gymnasium_id_may_leave_out_its_version() -> None:
    with pytest.warns(UserWarning, match="latest versioned environment"):
        assert make_env("Pendulum").spec.id == "Pendulum-v1"


@pytest.mark.usefixtures("shop")
def test_an_id_with_a_module_is_found_once_the_module_is_imported() -> None:
    context = EnvContext({"length": 3})
    assert make_env("menv_shop.games:ShopCorridor-v0", context).unwrapped.length == 3
    assert make_env("menv_shop.games:ShopUnversioned", context).unwrapped.length == 3
    assert make_env("ShopCorridor-v0", context).unwrapped.length == 3


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("path", ["menv_shop.games:Corridor", "menv_shop.games.Corridor"])
def test_a_class_given_by_path_gets_the_context_exactly_as_the_class_does(path: str) -> None:
    env = make_env(path, EnvContext({"length": 3}, vector_index=2))
    assert env.context == {"length": 3}
    assert env.context.vector_index == 2
    assert type(env).__name__ == "Corridor"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("CartPole-v7", "'CartPole-v1'"),
        ("cartpole-v1", "'CartPole-v1'"),
        ("TicTacTo", "'tictactoe'"),
        ("my_corridoor", "'my_corridor'"),
        ("gymnasium:CartPoll-v1", "'CartPole-v1'"),
    ],
)
def test_an_unknown_name_lists_near_names(name: str, near: str) -> None:
    register_env("my_corridor", Game)
    with pytest.raises(UnknownNameError) as caught:
        resolve_env(name)
    text = str(caught.value)
    assert f"did you mean {near}" in text
    assert len(text) < 200
    assert "\n" not in text


@pytest.mark.parametrize(
    "name",
    [
        "",
        "qqqqqqqq",
        "no_such_package.module:Env",
        "no_such_package.Env",
        ":Env",
        ".games:Env",
        "os:",
        "a b.c",
    ],
)
def test_a_name_like_no_other_is_unknown_too(name: str) -> None:
    with pytest.raises(UnknownNameError):
        resolve_env(name)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_package.module:Env", "'no_such_package.module'"),
        ("menv_shop.gamez:Corridor", "'menv_shop.gamez'"),
        ("menv_shop.games:Tower", "Tower"),
        ("menv_shop/games.py:Corridor", str(Path("menv_shop/games.py").resolve())),
        ("games.py", "games.py:Class"),
        ("pettingzoo:classic/tictactoe", "pettingzoo:classic/tictactoe_v3"),
        ("tictactoe_v3", "pettingzoo:classic/tictactoe_v3"),
        ("openspiel:leduc", "openspiel:leduc_poker"),
        ("leduc_poker", "openspiel:leduc_poker"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_is_missing(name: str, why: str) -> None:
    with pytest.raises(UnknownNameError, match=why.replace("(", r"\(").replace(")", r"\)")) as caught:
        resolve_env(name)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("shop")
def test_a_misspelt_class_in_a_module_that_exists_names_the_right_one() -> None:
    with pytest.raises(UnknownNameError, match=r"menv_shop\.games:Corridor"):
        resolve_env("menv_shop.games:Coridor")


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_an_id_that_no_imported_package_has_says_how_to_import_one(name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"package:{name}"):
        resolve_env(name)


@pytest.mark.usefixtures("shop")
def test_a_path_to_an_object_that_creates_no_environment_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="size"):
        resolve_env("menv_shop.games:size")


@pytest.mark.usefixtures("shop")
def test_a_module_that_raises_while_imported_keeps_its_own_error() -> None:
    with pytest.raises(EnvCrashError, match=r"menv_shop\.wrong") as caught:
        resolve_env("menv_shop.wrong:Env")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.usefixtures("shop")
def test_a_module_that_needs_a_missing_package_says_what_to_install() -> None:
    text = r"menv_shop\.broken .*(a_package_\w+).* pip install \1$"
    with pytest.raises(MissingExtraError, match=text):
        resolve_env("menv_shop.broken:Env")


def test_an_existing_environment_is_refused_and_the_alternative_is_named() -> None:
    class Callable(Game):
        def step(self, action: int) -> None: ...

        def __call__(self, context: EnvContext) -> None: ...

    for env in (Game(EnvContext()), Callable(EnvContext()), gym.make("CartPole-v1"), 5, {"env": Game}):
        with pytest.raises(ConfigError, match="register_env"):
            resolve_env(env)


def test_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="None"):
        resolve_env(None)


def test_a_creator_without_a_context_parameter_gets_keywords_of_env_config() -> None:
    with pytest.raises(ConfigError, match="env_config"):
        make_env(lambda context, size: Game(context), {"size": 3})
    assert make_env(lambda size=3, config=None: Game(EnvContext({"size": size})), {"size": 5}).context == {
        "size": 5
    }


def test_a_creator_that_raises_keeps_its_traceback_and_is_named_with_its_place() -> None:
    def build_a_wall(context: EnvContext) -> Game:
        raise ValueError("no bricks left\nand more detail")

    register_env("wall", build_a_wall)
    with pytest.raises(EnvCrashError, match="no bricks left") as caught:
        make_env("wall", EnvContext(worker_index=3, vector_index=5))
    text = str(caught.value)
    assert text.startswith("env 'wall' (worker_index=3, vector_index=5): ")
    assert "\n" not in text
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "build_a_wall"


@pytest.mark.parametrize(("creator", "got"), [(lambda context: None, "None"), (lambda context: Game, "Game")])
def test_a_creator_that_returns_no_environment_breaks_the_contract(creator: Any, got: str) -> None:
    register_env("nothing", creator)
    with pytest.raises(ContractError, match=got):
        make_env("nothing")


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_every_built_in_name_creates_its_environment(name: str) -> None:
    _, _, class_name = registry.BUILT_IN[name].partition(":")
    assert type(make_env(name)).__name__ == class_name


def test_environments_are_described_by_their_name() -> None:
    assert describe_env("game") == "'game'"
    assert describe_env(Game) == "Game"
    assert describe_env(functools.partial(make_game, size=3)) == "partial of make_game"


def test_an_environment_with_rllibs_base_class_is_not_single_agent() -> None:
    # It is known by the name of its base; ray.rllib needs more packages than these tests install.
    base = type("MultiAgentEnv", (gym.Env,), {"__module__": "ray.rllib.env.multi_agent_env"})
    market = type("Market", (base,), {})
    with pytest.raises(ConfigError, match="LegacyGym"):
        make_env(lambda context: market())
    with pytest.raises(ConfigError, match="Market"):
        to_base_env(market())


class Wrapping:
    def __init__(self, scenario):  # type: ignore[no-untyped-def]
        self.scenario = scenario


class Typed:
    def __init__(self, environment: EnvContext) -> None:
        self.context = environment


@pytest.mark.parametrize("env", [Wrapping, f"{__name__}:Wrapping", f"{__name__}.Wrapping"])
def test_a_class_whose_argument_is_not_a_config_gets_a_value_of_env_config_or_is_refused(env: Any) -> None:
    with pytest.raises(ConfigError, match="'scenario'"):
        make_env(env)
    assert make_env(env, {"scenario": "balance"}).scenario == "balance"


def test_a_class_that_annotates_its_argument_as_a_context_gets_one_whatever_its_name() -> None:
    assert make_env(Typed, {"size": 3}).context == {"size": 3}


FILE = """
    from pieces import SIZE

    class Grid:
        def __init__(self, size=SIZE):
            self.size = size
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with `grids/menv_grid.py`, which imports another file of its folder."""
    (tmp_path / "grids").mkdir()
    (tmp_path / "grids" / "menv_grid.py").write_text(textwrap.dedent(FILE))
    (tmp_path / "grids" / "pieces.py").write_text("SIZE = 4\n")
    (tmp_path / "grids" / "string.py").write_text("Grid = dict\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("menv_grid", "pieces"):
        sys.modules.pop(name, None)


def test_a_file_is_imported_with_its_folder_on_the_path(files: Path) -> None:
    assert make_env("grids/menv_grid.py:Grid").size == 4
    assert make_env(f"{files}/grids/menv_grid.py:Grid", {"size": 2}).size == 2
    assert type(make_env("grids/menv_grid.py:Grid")) is sys.modules["menv_grid"].Grid


@pytest.mark.usefixtures("shop")
def test_a_file_of_a_package_is_imported_as_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert type(make_env("menv_shop/games.py:Corridor")).__module__ == "menv_shop.games"


@pytest.mark.parametrize(
    ("name", "why"), [("grids/menv_grid.py:Gird", r"menv_grid\.py:Grid"), ("grids/string.py:Grid", "string")]
)
def test_a_file_without_the_environment_says_what_is_wrong(files: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve_env(name)


def test_environments_of_other_libraries_are_made_and_wrapped_by_name() -> None:
    assert isinstance(make_env("pettingzoo:classic/tictactoe_v3", {"render_mode": "ansi"}), PettingZooEnv)
    spread = make_env("pettingzoo:mpe/simple_spread_v3", {"N": 2})
    assert isinstance(spread, ParallelPettingZooEnv)
    assert spread.possible_agents == ["agent_0", "agent_1"]
    worlds = make_env("vmas:balance", {"num_envs": 2})
    assert isinstance(worlds, VmasEnv)
    assert worlds.num_envs == 2
    for name, settings in (
        ("openspiel:leduc_poker", {"players": 3}),
        ("openspiel:leduc_poker(players=3)", {}),
    ):
        game = make_env(name, {"tensor": "observation", **settings})
        assert isinstance(game, OpenSpielEnv)
        assert len(game.possible_agents) == 3


def test_a_creator_may_return_an_environment_of_another_library() -> None:
    import pyspiel
    from mpe2 import simple_spread_v3
    from pettingzoo.classic.tictactoe.tictactoe import env as tictactoe

    assert isinstance(make_env(tictactoe), PettingZooEnv)
    assert isinstance(make_env(lambda context: simple_spread_v3.parallel_env()), ParallelPettingZooEnv)
    assert isinstance(make_env(lambda context: pyspiel.load_game("kuhn_poker")), OpenSpielEnv)
    own = PettingZooEnv(tictactoe())
    assert make_env(lambda context: own) is own
    assert len(to_base_env(tictactoe(), lambda index: tictactoe(), num_envs=2).get_sub_environments()) == 2


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("pettingzoo:classic/tictactoe_v3", "pettingzoo", "'menv-rl[pettingzoo]'"),
        ("pettingzoo:mpe/simple_spread_v3", "mpe2", "mpe2"),
        ("openspiel:leduc_poker", "pyspiel", "open_spiel"),
        ("jumanji:RobotWarehouse-v0", "jumanji", "'menv-rl[jax]'"),
        ("pgx:connect_four", "pgx", "'menv-rl[jax]'"),
        ("jaxmarl:MPE_simple_spread_v3", "jaxmarl", "'menv-rl[jax]'"),
        ("vmas:balance", "vmas", "vmas"),
    ],
)
def test_a_name_from_a_missing_package_says_how_to_install_it(
    name: str, package: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnknownNameError, match=rf"'{name}'.* pip install {re.escape(install)}$"):
        resolve_env(name)


def test_an_environment_that_needs_more_packages_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "multi_agent_ale_py", None)
    with pytest.raises(UnknownNameError, match=r"pettingzoo\[atari\]"):
        resolve_env("pettingzoo:atari/pong_v3")
