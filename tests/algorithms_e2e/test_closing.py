"""Environments that cannot be closed, or not before they were used, when an algorithm stops."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from menv import DefaultCallbacks
from menv.algorithms import PPO
from menv.errors import ConfigError, EnvCrashError
from tests.sampling.reference_envs import Steady

TINY: dict[str, Any] = {
    "train_batch_size": 64,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 2,
    "num_envs_per_worker": 4,
}


def test_all_environments_are_closed_where_one_cannot_be() -> None:
    closed: list[int] = []

    class Closes(Steady):
        def close(self) -> None:
            closed.append(1)
            raise OSError(f"no window of number {len(closed)}")

    algorithm = PPO(env=lambda context: Closes(), config=TINY)
    algorithm.sample()
    algorithm.evaluate()
    with pytest.raises(
        EnvCrashError, match=r"^env 3 close: raised OSError: no window of number \d"
    ) as caught:
        algorithm.stop()
    assert isinstance(caught.value.__cause__, OSError)
    # Those of the evaluation too.
    assert len(closed) == 8


@pytest.mark.parametrize("elsewhere", [{"num_workers": 1}, {"remote_worker_envs": True}])
def test_an_environment_that_only_tells_its_spaces_need_not_be_able_to_close(
    elsewhere: dict[str, Any],
) -> None:
    class Opens(Steady):
        def reset(self, **asked: Any) -> Any:
            self.window = io.StringIO()
            return super().reset(**asked)

        def close(self) -> None:
            self.window.close()

    with PPO(env=lambda context: Opens(), config={**TINY, "engine": "process", **elsewhere}) as algorithm:
        assert algorithm.sample().env_steps() == 64


class Refusing(DefaultCallbacks):
    """Raises when all is there."""

    def on_algorithm_init(self, **kwargs: Any) -> None:
        raise ArithmeticError("not today")


@pytest.mark.parametrize("kept_from", [{"callbacks": Refusing}, {"evaluation_interval": 1}])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_nothing_stays_open_where_a_run_cannot_be_built_to_its_end(
    kept_from: dict[str, Any], num_workers: int
) -> None:
    closed: list[int] = []

    class Closes(Steady):
        def close(self) -> None:
            closed.append(1)

    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    workers = {"num_workers": num_workers, "engine": "process"}
    own = {"evaluation_config": {"env": "Pendulum-v1"}}
    with pytest.raises((ArithmeticError, ConfigError)) as caught:
        PPO(env=lambda context: Closes(), config={**TINY, **workers, **own, **kept_from})
    # As long as somebody looks at the error, nothing of the run is let go of by itself.
    assert caught.traceback
    assert children.read_text() == before
    assert len(closed) == (1 if num_workers else 4)
