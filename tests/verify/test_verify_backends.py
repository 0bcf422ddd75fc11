"""`verify_backends`: what is the same everywhere is called so, and what is not is named."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import pytest

from menv import ConfigError, EnvCrashError, verify_backends
from menv.verify.verify import BACKENDS, VerifyReport
from tests.verify import hosted, unsteady

# The games of PettingZoo that are tested here are made as its documentation says for its versions up to now.
pytestmark = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")

# Ray runs for the test that is about it, and may do so before.
WITHOUT_RAY = [backend for backend in BACKENDS if not backend.on_ray]
# The others are compared with each other elsewhere in this module.
ON_RAY = [BACKENDS[0], *(backend for backend in BACKENDS if backend.on_ray)]
OVER_THERE = [backend for backend in BACKENDS if backend.name in ("copies", "workers (process)")]
ALL = [backend.name for backend in WITHOUT_RAY]
WORKERS = ["workers (process)"]
MULTI = [name for name in ALL if name != "VectorEnv"]
WHOLE = ["copies", "copies once more", *WORKERS]
HERE = BACKENDS[:3]


def by_seat(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return "ab"[int(str(agent_id)[-1]) % 2]


@pytest.mark.slow_unless("tictactoe-*", "vectorised-*")
@pytest.mark.parametrize(
    ("env", "names"),
    [
        ("CartPole-v1", ALL),
        pytest.param("Pendulum-v1", ALL, marks=pytest.mark.slow),
        ("tictactoe", MULTI),
        ("traffic", MULTI),
        pytest.param(hosted.spread_in_turns, MULTI, marks=pytest.mark.slow),
        pytest.param(hosted.tag_together, MULTI, marks=pytest.mark.slow),
        (hosted.connect_four, MULTI),
        (hosted.irregular, MULTI),
        (hosted.vectorised, WHOLE),
        pytest.param(hosted.of_gymnasium, WHOLE, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)) if not isinstance(value, list) else "",
)
def test_back_ends_agree(env: Any, names: list[str]) -> None:
    report = verify_backends(env, env_steps=200, backends=WITHOUT_RAY)
    assert list(report.digests) == names
    assert report.same, str(report)
    assert report.left_out == {}
    assert len(set(report.digests.values())) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"multiagent": {"policies": ["a", "b"], "policy_mapping_fn": by_seat}},
        {"model": {"use_lstm": True, "lstm_cell_size": 8}},
        {"agent_connectors": [("FrameStackAgentConnector", {"num_frames": 2})]},
    ],
    ids=["policies", "memory", "connectors"],
)
def test_policies_of_every_kind_are_the_same_everywhere(config: dict[str, Any]) -> None:
    report = verify_backends("tictactoe", config, num_envs=3, env_steps=300, seed=4, backends=HERE)
    assert report.same, str(report)
    assert report.num_envs == 3


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "tictactoe",
        # The two above are of both kinds; what these add does not ask who starts the processes.
        pytest.param("traffic", marks=pytest.mark.slow),
        pytest.param(hosted.connect_four, marks=pytest.mark.slow),
    ],
    ids=["CartPole-v1", "tictactoe", "traffic", "connect_four"],
)
def test_workers_on_ray_agree_too(env: Any) -> None:
    report = verify_backends(env, env_steps=400, ray=True, backends=ON_RAY)
    assert "workers (ray)" in report.digests
    assert report.same, str(report)


def first_of(report: VerifyReport, backend: str) -> Any:
    return report.differences[backend]


@pytest.mark.slow_unless("Placed-*")
@pytest.mark.parametrize(
    ("env", "differing"),
    [
        (unsteady.Global, ALL[1:]),
        pytest.param(unsteady.GlobalNumpy, WORKERS, marks=pytest.mark.slow),
        pytest.param(unsteady.Crowd, WORKERS, marks=pytest.mark.slow),
        (unsteady.Placed, WORKERS),
        (unsteady.Hashed, WORKERS),
        pytest.param(unsteady.Ordered, WORKERS, marks=pytest.mark.slow),
        pytest.param(unsteady.Timed, ALL[1:], marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_depends_on_its_position_is_found(env: Any, differing: list[str]) -> None:
    report = verify_backends(env, num_envs=4, env_steps=200, backends=WITHOUT_RAY)
    assert not report.same
    assert list(report.differences) == differing
    for first in report.differences.values():
        assert first.agent == "'agent0'"
        assert first.column == "obs[2]"
        assert first.values[0] != first.values[1]
    reference = report.digests["copies"]
    assert {name for name, digest in report.digests.items() if digest != reference} == {*differing}


@pytest.mark.parametrize(
    ("env", "agent", "env_step", "column"),
    [
        # What environments leave in their class, what the process shares, and an agent that differs.
        (unsteady.Numbered, "'agent0'", 0, "rewards"),
        (unsteady.Global, "'agent0'", 4, "obs[2]"),
        (unsteady.Pair, "'a'", 3, "obs[2]"),
    ],
)
def test_the_first_timestep_that_differs_is_the_one_that_is_named(
    env: Any, agent: str, env_step: int, column: str
) -> None:
    first = first_of(verify_backends(env, num_envs=4, env_steps=200, backends=HERE), "copies once more")
    assert (first.env_index, first.agent, first.step, first.column) == (0, agent, env_step, column)


class Late(unsteady.Walk):
    """Its third environment ends its second episode early, every time but the first."""

    made = 0

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        Late.made += 1
        # The one that is looked at first is the first.
        self.early = Late.made > 1 + 4 and (Late.made - 2) % 4 == 2

    def step(self, action: Any) -> Any:
        seen, reward, over, cut, infos = super().step(action)
        return seen, reward, over, cut or (self.early and self.episode == 1 and self.at == 6), infos


def test_an_end_in_one_back_end_alone_is_named() -> None:
    two = [backend for backend in BACKENDS if backend.name in ("copies", "copies once more")]
    first = first_of(verify_backends(Late, num_envs=4, env_steps=160, backends=two), "copies once more")
    assert (first.env_index, first.step, first.env_step) == (2, 5, 15)
    assert (first.column, first.values) == ("truncateds", ("False", "True"))
    assert str(first) == "env 2, env step 15, agent 'agent0': truncateds is False and True"


def test_the_lines_say_what_differs_and_where() -> None:
    lines = verify_backends(unsteady.Global, num_envs=4, env_steps=80, backends=HERE).lines
    assert lines[0] == "Global: not the same everywhere (4 environments, 80 env steps, seed 0)"
    assert lines[1].startswith("  copies: ")
    assert lines[2].startswith(
        "  copies once more: differs, first at env 0, env step 4, agent 'agent0': obs[2] is 0."
    )


def test_environments_without_a_name_and_functions_in_settings_reach_other_processes() -> None:
    config = {"multiagent": {"policies": ["a", "b"], "policy_mapping_fn": by_seat}}
    gym.register("OnlyHere-v0", entry_point="tests.verify.unsteady:Walk")
    played: list[tuple[Any, dict[str, Any]]] = [
        (lambda context: unsteady.Walk(context), {}), ("tictactoe", config), ("OnlyHere-v0", {}),
    ]  # fmt: skip
    for env, settings in played:
        report = verify_backends(env, settings, num_envs=2, env_steps=40, backends=OVER_THERE)
        assert report.same, str(report)
        assert list(report.digests) == ["copies", *WORKERS]


def test_an_environment_that_cannot_be_sent_is_left_out_and_its_reason_is_reported() -> None:
    lock = threading.Lock()

    def locked(context: Any) -> unsteady.Walk:
        with lock:
            return unsteady.Walk(context)

    report = verify_backends(locked, num_envs=2, env_steps=40, backends=WITHOUT_RAY)
    assert report.same
    assert list(report.digests) == [name for name in ALL if name not in WORKERS]
    assert list(report.left_out) == WORKERS
    assert "lock" in report.left_out["workers (process)"]
    assert report.lines[-1].startswith("  left out, workers (process): ")


@pytest.mark.slow
def test_settings_reach_the_environments_everywhere() -> None:
    one, other = (
        verify_backends(
            hosted.irregular, {"env_config": {"world": world}}, num_envs=2, env_steps=80, backends=WITHOUT_RAY
        )
        for world in (0, 3)
    )
    assert one.same
    assert other.same
    assert one.digests["copies"] != other.digests["copies"]
    assert list(one.digests) == list(other.digests) == MULTI


def test_the_place_where_an_environment_fails_is_reported_with_its_error() -> None:
    class NeverSecond(unsteady.Walk):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.fails = context.worker_index == 2

        def disturbance(self) -> float:
            if self.fails and self.at == 3:
                raise RuntimeError("no second worker")
            return 0.0

    with pytest.raises(EnvCrashError, match="no second worker") as caught:
        verify_backends(NeverSecond, num_envs=4, env_steps=80, backends=WITHOUT_RAY)
    assert caught.value.__notes__ == ["while verify_backends played in the back-end 'workers (process)'"]


@pytest.mark.parametrize(
    ("env", "settings", "words"),
    [
        (unsteady.Walk(), {}, "Walk"),
        (hosted.external, {}, "external"),
        (unsteady.Walk, {"num_envs": 0}, "num_envs"),
        (unsteady.Walk, {"env_steps": 1.5}, "env_steps"),
        (unsteady.Walk, {"seed": -1}, "seed"),
        (unsteady.Walk, {"config": {"gama": 1}}, "'gamma'"),
        ("no_such_env", {}, "no_such_env"),
    ],
)
def test_what_cannot_be_compared_is_refused(env: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        verify_backends(env, **settings)
