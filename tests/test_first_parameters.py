"""Creators whose first parameter is a setting, and would be given the context for it."""

from typing import Any

import pytest

from menv import registry
from menv.env_context import EnvContext
from menv.errors import ConfigError
from menv.registry import make_env, register_env, resolve_env


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


class Configured(Game):
    def __init__(self, env_config: str = "") -> None:
        super().__init__(EnvContext())


@pytest.mark.parametrize(
    ("kind", "named"), [(Sized, "size: int = 5"), (Shown, "render_mode: str | None = None")]
)
def test_a_class_whose_first_parameter_is_a_setting_is_refused(kind: Any, named: str) -> None:
    register_env("set_up", kind)
    for env in (kind, "set_up"):
        with pytest.raises(ConfigError) as caught:
            resolve_env(env)
        assert f"its first parameter is {named}, which would be given the EnvContext" in str(caught.value)
        assert f"pass `lambda context: {kind.__name__}(**context)`" in str(caught.value)
    made = make_env(lambda context: kind(**context), {"size": 3})
    assert made.context == {"size": 3}


def test_what_is_called_like_a_context_may_have_any_default() -> None:
    assert isinstance(make_env(Configured), Configured)
    assert isinstance(make_env(lambda _=0: Game(EnvContext())), Game)
