"""A network is built once and lives as long as its learner: each gradient step is what a new one would give.

What a network made of its parameters when it was built, such as a transpose, is older than the optimizer's steps, and
autograd may know nothing of it any more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from menv.algorithms.networks.stock_spec import StockSpec
from menv.algorithms.ppo import learner
from menv.algorithms.qmix.network import GroupSpec
from tests.algorithms_e2e.test_devices import OWN, STOCK, trained

NOT_ASKED = {"a loss and modules": "default_policy.value.", "custom dqn": "default_policy.value."}
"""Layers that a kind has and does not use: its critic is another one, or it learns Q-values alone."""


class Anew:
    """Stands for a network, which is built again whenever anything is asked of it."""

    def __init__(self, build: Any) -> None:
        self._build = build

    def __getattr__(self, name: str) -> Any:
        return getattr(self._build(), name)


# A module of one's own is lent the parameters for each call.
@pytest.mark.slow_unless("choices", "both, with masks", "gru", "pictures", "dqn", "qmix")
@pytest.mark.parametrize("kind", STOCK)
def test_learning_with_one_network_is_learning_with_a_new_one_at_every_step(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Gradients that are written by hand read the parameters themselves; other tests compare both ways.
    monkeypatch.setattr(learner, "can_learn", lambda spec: False)
    found = trained(kind)
    for spec_class in (StockSpec, GroupSpec):
        build: Any = spec_class.torch_network
        monkeypatch.setattr(
            spec_class, "torch_network", lambda self, params, build=build: Anew(partial(build, self, params))
        )
    wanted = trained(kind)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


@pytest.mark.slow_unless(
    "both, with masks",
    "gru",
    "pictures",
    "dqn",
    "torch acts for a group",
    "custom with a memory",
    "a loss and modules",
)
@pytest.mark.parametrize("kind", [*STOCK, *OWN])
def test_every_weight_is_learned(kind: str) -> None:
    begun, after, later = (trained(kind, iterations) for iterations in (0, 1, 3))
    idle = NOT_ASKED.get(kind, "default_policy.epsilon")
    for name in sorted(name for name in begun if not name.startswith((idle, "default_policy.epsilon"))):
        assert not np.array_equal(begun[name], after[name]), name
        assert not np.array_equal(after[name], later[name]), name
