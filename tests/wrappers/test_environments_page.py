"""The lines of docs/how_to/environments.md whose packages the tests install."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from menv.algorithms import PPO

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "environments.md").read_text()
IMPORTS = re.search(r"^from menv\.wrappers import \([^)]*\)$", PAGE, re.MULTILINE)


def line_of(package: str) -> Any:
    """Return the function that the page's table has for a package."""
    row = re.search(rf"^\| `{package}` [\d.]+ \| `(.*)` \| `(.*)` \|$", PAGE, re.MULTILINE)
    assert row
    assert IMPORTS
    names: dict[str, Any] = {}
    exec("import gymnasium as gym\n" + "\n".join((IMPORTS[0], *row[1].split("`, `"))), names)
    return eval(row[2], names)


@pytest.mark.slow_unless("open_spiel")
@pytest.mark.parametrize("package", ["open_spiel", "vmas", "mpe2"])
def test_a_command_of_the_page_trains_as_printed(package: str) -> None:
    config = {
        "train_batch_size": 2560,
        "rollout_fragment_length": 10,
        "sgd_minibatch_size": 512,
        "num_sgd_iter": 1,
    }
    with PPO(env=line_of(package), config=config) as algo:
        result = algo.train()
        assert result["num_env_steps_sampled"] >= 2560
        assert result["num_env_steps_trained"] > 2400
