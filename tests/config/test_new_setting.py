"""A new setting is one line: dicts, keywords, the builder chain, errors, files, commands and the page know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from menv import ConfigError
from menv.algorithms import PPOConfig
from menv.algorithms.config.read_config import override, read_config
from menv.algorithms.config.setting import by_name, setting
from menv.algorithms.config.stored_config import restored_config, stored_config
from menv.cli.arguments import read_settings
from menv.policy_map import PolicyMap
from tests.settings_page import part


@by_name
@dataclass(frozen=True, kw_only=True)
class Skating(PPOConfig):
    """PPO with one more setting."""

    friction: float = setting(0.5, low=0, high=1, methods="environment", old="mu")
    """How much the ice slows down."""


def test_dicts_keywords_the_chain_and_the_command_set_it() -> None:
    config = Skating(env="CartPole-v1", friction=0.25)
    assert (config.friction, config["friction"], config.copy()["friction"]) == (0.25, 0.25, 0.25)
    assert config == read_config(Skating, {"env": "CartPole-v1", "friction": 0.25})
    assert config == Skating().environment("CartPole-v1", friction=0.25)
    assert config == Skating().environment("CartPole-v1", mu=0.25)
    assert config == read_config(Skating, read_settings("friction=0.25"), "CartPole-v1")
    assert Skating().friction == 0.5


def test_a_policy_has_its_own_and_a_checkpoint_holds_it() -> None:
    config = Skating(env="CartPole-v1", friction=0.25)
    assert override(config, {"friction": 1}, "p").friction == 1
    stored = stored_config(config, PolicyMap())
    assert (stored["friction"], restored_config(Skating, stored, None)["friction"]) == (0.25, 0.25)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"friction": 2}, "^PPO: friction is 2, expected a number from 0 to 1; correct it$"),
        ({"fricton": 1}, r"^config: unknown key 'fricton', .*; did you mean 'friction'\?$"),
        ({"mu": 1}, "^config: unknown key 'mu', .*; it is called 'friction' here$"),
    ],
)
def test_errors_name_it(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(Skating, given)
    with pytest.raises(ConfigError, match=r"^Skating.training: .*; write \.environment\(friction=\.\.\.\)$"):
        Skating().training(friction=1)


def test_the_page_has_its_sentence() -> None:
    assert "| `friction` * | `0.5` | How much the ice slows down. |" in part("", "", Skating, {"friction"})
