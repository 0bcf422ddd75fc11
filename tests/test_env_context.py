"""EnvContext: a dict with attributes, and copies that share nothing."""

import copy
import pickle
import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from menv.env_context import EnvContext
from menv.errors import ConfigError

ATTRIBUTES = {
    "worker_index": 2,
    "vector_index": 3,
    "remote": True,
    "num_workers": 4,
    "recreated_worker": True,
    "in_evaluation": True,
}


def a_context() -> EnvContext:
    return EnvContext({"size": 5, "map": {"walls": [1, 2]}}, 2, 3, True, 4, True, True)


def test_the_settings_are_items_and_the_place_is_in_attributes() -> None:
    context = a_context()
    assert isinstance(context, dict)
    assert context["size"] == 5
    assert context.get("absent", 7) == 7
    assert vars(context) == ATTRIBUTES


def test_everything_has_a_default() -> None:
    context = EnvContext(MappingProxyType({}))
    assert context == EnvContext() == {}
    assert (context.worker_index, context.vector_index) == (0, 0)
    assert (context.remote, context.num_workers, context.recreated_worker) == (False, None, False)
    assert context.in_evaluation is False


COPIES: list[Callable[[EnvContext], EnvContext]] = [
    EnvContext.copy,
    copy.copy,
    copy.deepcopy,
    EnvContext.copy_with_overrides,
    lambda context: pickle.loads(pickle.dumps(context)),
]


@pytest.mark.parametrize("make_copy", COPIES, ids=["copy", "copy.copy", "deepcopy", "overrides", "pickle"])
def test_every_copy_keeps_the_attributes_and_shares_no_nested_value(
    make_copy: Callable[[EnvContext], EnvContext],
) -> None:
    context = a_context()
    twin = make_copy(context)
    assert type(twin) is EnvContext
    assert twin == context
    assert vars(twin) == ATTRIBUTES
    twin["map"]["walls"].append(3)
    twin.worker_index = 9
    assert context["map"]["walls"] == [1, 2]
    assert context.worker_index == 2


def test_zero_and_false_override_and_none_keeps() -> None:
    twin = a_context().copy_with_overrides(
        worker_index=0,
        vector_index=0,
        remote=False,
        num_workers=0,
        recreated_worker=False,
        in_evaluation=False,
    )
    assert (twin.worker_index, twin.vector_index, twin.remote) == (0, 0, False)
    assert (twin.num_workers, twin.recreated_worker, twin.in_evaluation) == (0, False, False)
    assert vars(a_context().copy_with_overrides()) == ATTRIBUTES


def test_an_env_config_given_as_override_replaces_all_settings_and_is_copied() -> None:
    override = {"walls": [1]}
    twin = a_context().copy_with_overrides(env_config=override)
    assert twin == {"walls": [1]}
    assert vars(twin) == ATTRIBUTES
    twin["walls"].append(2)
    assert override == {"walls": [1]}
    assert a_context().copy_with_overrides(env_config={}) == {}


def test_defaults_fill_in_missing_settings_only_and_are_copied() -> None:
    context = a_context()
    defaults: dict[str, Any] = {"size": 99, "goal": [4]}
    context.set_defaults(defaults)
    assert context["size"] == 5
    context["goal"].append(5)
    assert defaults["goal"] == [4]


@pytest.mark.parametrize("wrong", [["size", 5], "size", 5])
def test_an_env_config_that_is_not_a_mapping_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"env_config .*{type(wrong).__name__}"):
        EnvContext(wrong)
    context = a_context()
    with pytest.raises(ConfigError, match="env_config"):
        context.copy_with_overrides(env_config=wrong)
    assert context == a_context()
    with pytest.raises(ConfigError, match="defaults"):
        EnvContext().set_defaults(wrong)


def test_a_setting_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env_config|lock"):
        EnvContext({"size": 5, "lock": threading.Lock()})


def test_two_settings_that_are_one_object_stay_one_object_in_the_copy() -> None:
    shared = [1]
    context = EnvContext({"a": shared, "b": shared}).copy()
    assert context["a"] is context["b"]
    assert context["a"] is not shared
