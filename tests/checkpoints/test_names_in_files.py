"""Whatever a checkpoint names, wherever it stands, is known here or has to be given again: nothing is imported."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import menv
from menv.algorithms import DQN, PPO, QMIX, Algorithm, ModelConfig, MultiAgentConfig
from menv.algorithms.config.read_config import read_config
from menv.algorithms.config.stored_config import restored_config, stored_config
from menv.algorithms.off_policy.config import ExplorationConfig, ReplayBufferConfig
from menv.cli.main import main
from menv.errors import ConfigError, MenvError
from menv.policy_map import PolicyMap
from tests.checkpoints.forged import forge
from tests.checkpoints.runs import SMALL
from tests.worlds import Alone

CANARY = "canary_of_files"
CODE = """
from pathlib import Path

def thing(*args, **kwargs):
    Path(__file__).with_name("called").touch()

class Thing:
    __init__ = thing

Path(__file__).with_name("imported").touch()
"""
LIBRARIES = ["pettingzoo:classic/tictactoe_v3", "openspiel:leduc_poker", "pgx:tic_tac_toe"]
NAMES: list[Any] = [
    f"{CANARY}:Thing",
    f"{CANARY}.Thing",
    f"{CANARY}:Thing-v0",
    f"@{CANARY}:thing",
    f"path/{CANARY}.py:Thing",
    f"./path/{CANARY}.py:Thing",
    *LIBRARIES,
    {"$named": f"class {CANARY}:Thing"},
    {"$named": f"function {CANARY}:thing"},
    {"$tuple": [f"{CANARY}:Thing", {}], "$named": "a tuple"},
    {"$named": "class menv.algorithms.ppo.ppo:PPO"},
]
"""Forms in which a file may name code; the last one is menv's own, but an algorithm would read `env_config`."""
TOUCH = {"env": "subprocess:Popen", "env_config": {"/bin/touch": 1}}
KINDS: list[type[Algorithm]] = [PPO, DQN, QMIX]
SECTIONS = {
    "model": ModelConfig,
    "multiagent": MultiAgentConfig,
    "exploration_config": ExplorationConfig,
    "replay_buffer_config": ReplayBufferConfig,
}


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path whose module tells by files that it was imported or called."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / f"{CANARY}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path / "path"
    sys.modules.pop(CANARY, None)


def woken(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.suffix != ".py")


def stored(kind: type[Algorithm], **more: Any) -> dict[str, Any]:
    """Return the settings of a checkpoint, with an evaluation due at once."""
    config = read_config(kind.recipe.config_class, {"env": "CartPole-v1", "evaluation_interval": 1, **more})
    return stored_config(config, PolicyMap({"a": None}, lambda *_: "a"))


def places(kind: type[Algorithm]) -> list[list[str]]:
    """Return where each field of each section stands in a config."""
    found = [[field.name] for field in dataclasses.fields(kind.recipe.config_class)]
    for name, section in SECTIONS.items():
        found += [[name, field.name] for field in dataclasses.fields(section)]
    spec = ["multiagent", "policies", "a"]
    found += [[*spec, name] for name in ("policy_class", "observation_space", "config", "algorithm")]
    return [
        *found,
        ["env_config", "id"],
        ["env_config", "deep", "id"],
        ["model", "custom_model_config", "net"],
    ]


DEPTHS: list[list[str]] = [
    [],
    ["evaluation_config"],
    ["evaluation_config", "evaluation_config"],
    ["multiagent", "policies", "a", "config"],
    ["evaluation_config", "multiagent", "policies", "a", "config"],
]


def put(tree: dict[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    """Return a tree with a value at a place, for which sections are made where there are none."""
    changed: dict[str, Any] = copy.deepcopy(tree)
    part = changed
    for key in keys[:-1]:
        part[key] = part[key] if isinstance(part.get(key), dict) else {}
        part = part[key]
    part[keys[-1]] = value
    return changed


@pytest.mark.parametrize(
    "name",
    [
        "a-script:Thing-v0", f"{CANARY}:Thing", "subprocess:Popen", f"./path/{CANARY}.py:Thing", "gone.py:Thing",
        "pettingzoo:classic/tictactoe_v3", "openspiel:leduc_poker", "pgx:tic_tac_toe",
    ],
)  # fmt: skip
def test_a_setting_that_names_an_importable_module_must_be_passed_again(name: str, canary: Path) -> None:
    (canary / "a-script.py").write_text(CODE)
    importlib.invalidate_caches()
    tree = put(stored(PPO), ["env_config"], {"id": name})
    tree["multiagent"]["policy_mapping_fn"] = None
    with pytest.raises(ConfigError, match=rf"config\['env_config'\]\['id'\] .*{name}"):
        restored_config(PPO.recipe.config_class, tree, None)


@pytest.mark.slow_unless("PPO-multiagent*", "DQN-evaluation_config", "QMIX-")
@pytest.mark.parametrize("depth", DEPTHS, ids="/".join)
@pytest.mark.parametrize("kind", KINDS)
def test_no_field_of_a_config_imports_what_a_file_names(
    kind: type[Algorithm], depth: list[str], canary: Path
) -> None:
    plain = stored(kind)
    plain["multiagent"]["policy_mapping_fn"] = None
    accepted = []
    for place in places(kind):
        for name in NAMES:
            tree = put(plain, [*depth, *place], name)
            # `from_checkpoint` makes one ConfigError of those that are of Python.
            with suppress(MenvError, TypeError, ValueError, AttributeError, KeyError):
                found = repr(restored_config(kind.recipe.config_class, tree, None))
                # Environments of installed libraries may be named, as those of gymnasium.
                accepted += [] if place[-1] == "env" and name in LIBRARIES else [found]
            assert woken(canary) == [], f"{place} = {name}"
    forms = (f"'{CANARY}:", f"{CANARY}.py:", "pettingzoo:", "openspiel:", "pgx:", ".PPO'")
    assert not [one for one in accepted if any(form in one for form in forms)]


HARM: dict[str, tuple[list[Any], Any]] = {
    "an env": (["env"], "subprocess:Popen"),
    "an env of an evaluation": (["evaluation_config"], TOUCH),
    "an env in a file": (["env"], f"path/{CANARY}.py:Thing"),
    "a game that reads a file": (["env"], "openspiel:efg_game"),
    "a game that holds a game": (["env"], "openspiel:misere"),
    "a game with parameters": (["env"], "openspiel:misere(game=efg_game(filename=/etc/passwd))"),
    "a module beside a library": (["env"], f"pettingzoo:classic/../../{CANARY}_v0"),
    "an evaluation of an evaluation": (["evaluation_config"], {"evaluation_config": TOUCH, **TOUCH}),
    "an algorithm as an env": (["env"], {"$named": "class menv.algorithms.ppo.ppo:PPO"}),
    "an id behind an id": (["evaluation_config"], {"env_config": {"id": f"{CANARY}:A-v0"}}),
    "a key": (["env_config"], {f"{CANARY}:Thing": 1}),
    "callbacks": (["callbacks"], [{"$named": f"class {CANARY}:Thing"}]),
    "an input": (["input"], {"$named": "class menv.policy:Policy"}),
    "a model": (["model", "custom_model"], {"$named": "class menv.algorithms.ppo.ppo:PPO"}),
    "a policy": (
        ["multiagent", "policies", "default_policy", "policy_class"],
        {"$named": f"class {CANARY}:T"},
    ),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with PPO(env="CartPole-v1", config={**SMALL, "evaluation_interval": 1}) as algo:
        return algo.save(tmp_path_factory.mktemp("saved"))


@pytest.mark.parametrize("name", HARM)
def test_a_checkpoint_with_right_hashes_runs_no_code_however_it_is_loaded(
    name: str, saved: Path, canary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, touched = tmp_path / "000000", tmp_path / "touched"
    shutil.copytree(saved, folder)
    keys, value = HARM[name]
    harm = json.loads(json.dumps(value).replace('"/bin/touch": 1', f'"/bin/touch": 1, "{touched}": 1'))
    forge(folder, "manifest.json", ["config", *keys], harm)
    with pytest.raises(ConfigError, match="config"):
        PPO.from_checkpoint(folder)
    for command in (
        ["evaluate", str(folder), "--episodes", "1"],
        [
            "train",
            "--resume",
            str(folder),
            "--run-dir",
            str(tmp_path / "run"),
            "--stop",
            "training_iteration=1",
        ],
    ):
        assert main(command) == 2, command
        assert "expected" in capsys.readouterr().err
    assert woken(canary) == []
    assert not touched.exists()


class Walk(Alone):
    """Ends at once; its settings say what it is called."""

    observation_space, length = gym.spaces.Box(-1, 1, (2,), np.float32), 1

    def __init__(self, config: Any) -> None:
        super().__init__(dict(config))


def test_settings_of_an_environment_that_name_a_module_are_given_again(canary: Path, tmp_path: Path) -> None:
    menv.register_env("a walk", Walk)
    settings = {"inner": f"{CANARY}:Thing"}
    with PPO(env="a walk", config={**SMALL, "env_config": settings}) as algo:
        algo.save(tmp_path)
    with pytest.raises(ConfigError, match=rf"config\['env_config'\]\['inner'\] .*{CANARY}:Thing"):
        PPO.from_checkpoint(tmp_path)
    with PPO.from_checkpoint(tmp_path, {"env_config": settings}) as again:
        assert dict(again.config.env_config) == settings
    assert woken(canary) == []


# Names that no file system takes, and ids of agents that are strings of numpy.
