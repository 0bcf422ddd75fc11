"""The page of all settings, made of what their classes say.

python -m tests.settings_page    writes docs/reference/settings.md
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from menv.algorithms import DQNConfig, PPOConfig, QMIXConfig, SACConfig
from menv.algorithms.config.algorithm_config import (
    AlgorithmConfig,
    ModelConfig,
    MultiAgentConfig,
    SelfPlayConfig,
)
from menv.algorithms.config.read_config import of_scope
from menv.algorithms.config.setting import Setting, Settings, table
from menv.algorithms.off_policy.config import ExplorationConfig, ReplayBufferConfig
from tests.house.sources import ROOT

PAGE = ROOT / "docs" / "reference" / "settings.md"
BEGINNING = """# Settings

Settings are the `config` of an algorithm, a dict of the keys that differ from the defaults:

```python
from menv.algorithms import PPO

config = {
    "lr": 0.001,
    "gamma": 0.95,
    "num_envs_per_worker": 8,
    "train_batch_size": 2048,
    "model": {"fcnet_hiddens": [128, 128]},
    "seed": 0,
}
with PPO(env="CartPole-v1", config=config) as algo:
    print("env steps", algo.train()["num_env_steps_sampled"])
```

```text
env steps 2048
```

On the command line `--config` has the same keys, with dots for sections. So has a
[TOML file](command_line.md#settings):

```sh
menv train CartPole-v1 --no-zoo --seed 0 --config lr=0.001 --config gamma=0.95 --config num_envs_per_worker=8 \\
    --config train_batch_size=2048 --config model.fcnet_hiddens=[128,128] --stop training_iteration=1 --no-save
```

| what you want | where to begin |
|---|---|
| more stable or faster learning | `lr`, `train_batch_size`, `gamma`; of PPO `entropy_coeff` and `num_sgd_iter` |
| another network | [`model`](#model): `fcnet_hiddens`, `use_lstm`, `conv_filters` |
| more steps per second | `num_envs_per_worker`, then `num_workers` |
| a policy for each role | [`multiagent`](#multiagent) |
| scores while training | `evaluation_interval`, `evaluation_duration` |
| the same run again | `seed` |

Names are the classic ones of RLlib. They are also the keywords of `PPOConfig`, `DQNConfig`, `SACConfig` and
`QMIXConfig`. An unknown key is refused with the nearest known one; classic keys without a meaning in menv warn once.
This page is built from the docstrings of the settings (`python -m tests.settings_page`).

A star means that a policy may override the setting: `PolicySpec(config={"gamma": 0.85})`.
For a section (`model`, `self_play`, `exploration_config`, `replay_buffer_config`) give only the keys that differ.
A policy with another algorithm than the run, `PolicySpec(algorithm="DQN")`, uses the main settings of
"Every algorithm" and `gamma`, but not `train_batch_size`. Its other settings, `lr` too, are its
algorithm's defaults, unless its config overrides them.
"""


def page() -> str:
    """Return the whole page."""
    common = _names(AlgorithmConfig)
    off_policy = _names(DQNConfig)
    parts = [
        ("Every algorithm", "", AlgorithmConfig, common),
        ("PPO", "", PPOConfig, _names(PPOConfig) - common),
        (
            "DQN",
            "`rollout_fragment_length` and `train_batch_size` have other defaults than above.",
            DQNConfig,
            _said_anew(DQNConfig, common),
        ),
        ("QMIX", "All of DQN, and:", QMIXConfig, _said_anew(QMIXConfig, off_policy)),
        (
            "SAC",
            "All of DQN but `double_q`, `dueling`, `cql_alpha` and `exploration_config`, and:",
            SACConfig,
            _said_anew(SACConfig, off_policy),
        ),
        ("`model`", "", ModelConfig, _names(ModelConfig)),
        ("`multiagent`", "", MultiAgentConfig, _names(MultiAgentConfig)),
        ("`self_play`", "", SelfPlayConfig, _names(SelfPlayConfig)),
        ("`exploration_config`", "Of DQN and QMIX.", ExplorationConfig, _names(ExplorationConfig)),
        ("`replay_buffer_config`", "Of DQN, SAC and QMIX.", ReplayBufferConfig, _names(ReplayBufferConfig)),
    ]
    return BEGINNING + "".join(part(title, text, owner, names) for title, text, owner, names in parts)


def part(title: str, text: str, owner: type[Any], names: set[str]) -> str:
    """Return the section of the page about some settings of a config class."""
    said = _said(owner)
    rows = [
        f"| `{row.key}`{_star(owner, name)} | {_default(row)} | {said[name]} |"
        for name, row in table(owner).items()
        if name in names
    ]
    head = [f"\n## {title}\n", *([f"{text}\n"] if text else []), "| key | default | |", "|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _star(owner: type[Any], name: str) -> str:
    of_policies = issubclass(owner, AlgorithmConfig) and of_scope(owner, "policy", "network", "connectors")
    return " *" if of_policies and name in of_policies else ""


def _names(owner: type[Any]) -> set[str]:
    return set(table(owner))


def _said_anew(owner: type[Any], known: set[str]) -> set[str]:
    """Return the fields of a config that are not known, or about which it says something of its own."""
    anew = {name for cls in _settings_of(owner) if cls is not AlgorithmConfig for name, _ in _docstrings(cls)}
    if owner in (QMIXConfig, SACConfig):
        anew = {name for name, _ in _docstrings(owner)}
    return (_names(owner) - known) | (anew & _names(owner))


def _said(owner: type[Any]) -> dict[str, str]:
    """Return the docstring of each field, on one line, of the class nearest to `owner`."""
    return {name: text for cls in reversed(_settings_of(owner)) for name, text in _docstrings(cls)}


def _settings_of(owner: type[Any]) -> list[type[Any]]:
    """Return a config class and its bases that state settings, the nearest first."""
    return [cls for cls in owner.__mro__ if issubclass(cls, Settings)]


def _docstrings(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that have docstrings, and these on one line."""
    tree = ast.parse(Path(inspect.getfile(cls)).read_text("utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__]
    for before, node in pairwise(found.body):
        match before, node:
            case ast.AnnAssign(annotation=kind), ast.Expr(value=ast.Constant(value=str(text))):
                if "ClassVar" not in ast.unparse(kind):
                    yield ast.unparse(before.target), " ".join(text.split()).replace("|", "\\|")


def _default(row: Setting) -> str:
    return "below" if row.section else f"`{getattr(row.default, '__name__', repr(row.default))}`"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
