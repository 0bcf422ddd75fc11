"""Creators without a parameter for the context, which get the settings as keywords."""

from typing import Any

import pytest

from menv import registry
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.registry import make_env, register_env


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are forgotten after it."""
    monkeypatch.setattr(registry, "_registered", {})


class Game:
    """An environment of no particular kind."""

    def __init__(self, context: EnvContext) -> None:
        self.context = context


class Sized(Game):
    def __init__(self, size: int = 5) -> None:
        super().__init__(EnvContext({"size": size}))


class Shown(Game):
    def __init__(self, render_mode: str | None = None, size: int = 5) -> None:
        super().__init__(EnvContext({"size": size}))


def of_size(*, size: int) -> Game:
    return Game(EnvContext({"size": size}))


def of_any_size(**settings: int) -> Game:
    return Game(EnvContext(settings))


def of_sides(width: int, target_height: int) -> Game:
    return Game(EnvContext({"size": width * target_height}))


@pytest.mark.parametrize("kind", [Sized, Shown, of_size, of_any_size])
def test_a_creator_without_a_parameter_for_the_context_gets_the_settings_as_keywords(kind: Any) -> None:
    register_env("set_up", kind)
    for env in (kind, "set_up"):
        assert make_env(env, {"size": 3}).context == {"size": 3}


def test_parameters_without_defaults_may_be_settings() -> None:
    assert make_env(of_sides, {"width": 2, "target_height": 3}).context == {"size": 6}
    assert isinstance(make_env(lambda: Game(EnvContext())), Game)


@pytest.mark.parametrize(
    ("env", "settings", "why"),
    [
        (Sized, {"colour": 1}, "colour"),
        (of_sides, {"width": 2}, "target_height"),
        (lambda: Game(EnvContext()), {"size": 3}, "size"),
        (of_size, {3: 4}, "strings"),
    ],
)
def test_settings_that_are_not_the_keywords_are_refused(env: Any, settings: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        make_env(env, settings)
    assert "\n" not in str(caught.value)
