"""The run ends when a sub-environment crashes again and again without progress, and keeps what was raised."""

from __future__ import annotations

import re
import traceback
from typing import Any

import pytest

from menv import EnvCrashError
from menv.algorithms import PPO
from tests.worlds import Alone, InStep, Sharing

pytestmark = pytest.mark.filterwarnings("ignore::menv.errors.EnvFaultWarning")


class StuckError(Exception):
    """What the environments raise."""


class SecretError(Exception):
    """It cannot be sent to another process."""

    def __reduce__(self) -> Any:
        raise TypeError("not for others")


def shake(config: Any, at: int) -> None:
    """Raise in the step that the config says."""
    if at == config.get("step"):
        raise (SecretError if config.get("secret") else StuckError)(f"stuck in step {at}")


class Shaky(Alone):
    """Episodes of 500 steps; each copy raises in a given step of its first episode."""

    length = 500

    def pay(self, action: Any) -> float:
        shake(self.config, self.at)
        return 1.0


class ShakyPair(Sharing):
    kind = Shaky


CONFIG: dict[str, Any] = {"rollout_fragment_length": 200, "train_batch_size": 200, "engine": "process"}
WHERE: list[Any] = [{}, {"num_workers": 1}, {"remote_worker_envs": True, "num_envs_per_worker": 2}]
everywhere = pytest.mark.parametrize("where", WHERE, ids=["here", "worker", "remote"])


def train(env: Any, times: int = 1, **config: Any) -> Any:
    with PPO(env=env, config={**CONFIG, **config}) as algo:
        for _ in range(times):
            result = algo.train()
    return result


@pytest.mark.slow_unless("*-here", "Shaky-worker", "ShakyPair-remote")
@everywhere
@pytest.mark.parametrize("env", [Shaky, ShakyPair])
def test_crashes_after_some_env_steps_of_progress_do_not_end_the_run(env: Any, where: Any) -> None:
    result = train(env, env_config={"step": 12}, **where)
    # Every twelfth step raises.
    assert result["num_faulty_episodes"] >= 200 // 12
    assert "StuckError: stuck in step 12" in result["first_fault"]


@pytest.mark.slow_unless("*-here", "Shaky-remote", "ShakyPair-worker")
@everywhere
@pytest.mark.parametrize("env", [Shaky, ShakyPair])
def test_three_crashes_in_the_first_steps_end_it_with_what_was_raised_as_the_cause(
    env: Any, where: Any
) -> None:
    with pytest.raises(EnvCrashError) as caught:
        train(env, env_config={"step": 3}, **where)
    assert re.search("first of 3 .* 10 .* 2 .*num_consecutive_env_failures_tolerance", str(caught.value))
    cause = caught.value.__cause__
    assert (type(cause), str(cause)) == (StuckError, "stuck in step 3")
    assert "in step\n" in "".join(traceback.format_exception(caught.value))


@pytest.mark.each_value
@everywhere
@pytest.mark.parametrize(("tolerated", "steps"), [(0, 3), (1, 6), (4, 15)])
def test_the_limit_is_a_setting(where: Any, tolerated: int, steps: int) -> None:
    if where and tolerated != 4:
        pytest.skip("the same code plays elsewhere")
    settings = {"num_consecutive_env_failures_tolerance": tolerated, "env_config": {"step": 3}, **where}
    with pytest.raises(EnvCrashError, match=f"first of {tolerated + 1}"):
        train(Shaky, **settings)


class ShakyVector(InStep):
    def vector_step(self, actions: Any) -> Any:
        raise StuckError("stuck together")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_vectorised_environment_ends_the_run_with_its_first_crash_and_its_cause(workers: int) -> None:
    with pytest.raises(EnvCrashError, match="stuck together") as caught:
        train(lambda context: ShakyVector([Alone(), Alone()]), num_workers=workers)
    assert type(caught.value.__cause__) is StuckError
