"""Errors without a message, settings without an end, and damaged files are errors of menv, in one line."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from menv import ConfigError, EnvCrashError, MenvError
from menv.algorithms import PPO
from menv.cli.main import main
from menv.offline import read_episodes, record
from menv.tracking import Run
from menv.verify.replay import replay
from tests.worlds import Alone, InStep, Sharing, like

SMALL: dict[str, Any] = {"rollout_fragment_length": 8, "train_batch_size": 16, "sgd_minibatch_size": 8}


class MuteError(Exception):
    def __str__(self) -> str:
        return str(1 / 0)


class Mute(Alone):
    def __init__(self, broken: str = "step") -> None:
        super().__init__()
        self.broken = broken

    def see(self) -> Any:
        return mute() if self.broken == "reset" else super().see()

    def pay(self, action: Any) -> float:
        raise MuteError


class MuteTeam(Sharing):
    kind = Mute


class MuteVector(InStep):
    def vector_reset(self, **kwargs: Any) -> Any:
        raise MuteError


def trained(env: Any, **config: Any) -> None:
    with PPO(env=env, config={**SMALL, **config}) as algo:
        algo.train()


def mute(*args: Any) -> Any:
    raise MuteError


@pytest.mark.parametrize(
    "run",
    [
        lambda: trained(lambda _: Mute()),
        lambda: trained(lambda _: Mute("reset")),
        lambda: trained(lambda _: MuteTeam()),
        lambda: trained(lambda _: MuteVector([Mute(), Mute()])),
        lambda: trained(lambda _: Mute(), num_workers=1),
        lambda: trained(lambda _: Mute(), remote_worker_envs=True),
        lambda: trained(
            lambda _: MuteTeam(), multiagent={"policies": {"a"}, "policy_mapping_fn": mute},
        ),
        lambda: trained(mute),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("sent_whole")
@pytest.mark.filterwarnings("ignore::menv.errors.EnvFaultWarning")
def test_an_error_whose_str_raises_is_named(run: Callable[[], None]) -> None:
    with pytest.raises(MenvError, match="MuteError"):
        run()


def test_results_that_no_run_wrote_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        algo.learn(16, run_dir=tmp_path / "run")
    path = tmp_path / "run" / "results.jsonl"
    whole = path.read_text()
    many = "9" * 400
    path.write_text(
        f'5\n[]\n"a"\nnull\n{{"training_iteration": "x"}}\n{{"training_iteration": 1, "episode_reward_mean": {many}}}\n'
        f'{"[" * 5000}\n{{"training_iteration": {"9" * 5000}}}\n{whole}'
    )
    assert [one["training_iteration"] for one in Run(tmp_path / "run").results()] == [1, 1]
    assert main(["show", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--stop", "training_iteration=2"]) == 0
    # What stands in the table is a number or a mistake of the table.
    table = tmp_path / "run" / "progress.csv"
    table.write_text(table.read_text().replace("16", many, 1))
    assert main(["show", str(tmp_path / "run")]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def nested(levels: int, inner: str = "1") -> str:
    return '{"a": ' * levels + inner + "}" * levels


@pytest.mark.parametrize("levels", [100, 400, 5000])
@pytest.mark.parametrize("form", ["text", "json", "toml", "value", "dots"])
def test_settings_without_an_end_are_refused(
    levels: int, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {
        "text": nested(levels),
        "json": str(tmp_path / "settings.json"),
        "toml": str(tmp_path / "settings.toml"),
        "value": f"env_config={'[' * levels}{']' * levels}",
        "dots": f"{'.'.join(['a'] * levels)}.b=1",
    }[form]
    (tmp_path / "settings.json").write_text(nested(levels))
    (tmp_path / "settings.toml").write_text(f"a = {'[' * levels}{']' * levels}")
    status: object
    try:
        status = main(["train", "CartPole-v1", "--no-save", "--config", given])
    except SystemExit as error:
        status = error.code
    said = capsys.readouterr().err
    assert status == 2
    assert "Traceback" not in said
    assert len(said.splitlines()[-1]) < 500


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of a crash capsule with actions in arrays."""
    place = tmp_path_factory.mktemp("capsule")

    arms = like(Mute, action_space=gym.spaces.Box(-1, 1, (2,), np.float32))
    with warnings.catch_warnings(), PPO(env=lambda _: arms(), config=SMALL) as algo:
        warnings.simplefilter("ignore")
        with pytest.raises(EnvCrashError):
            algo.learn(16, run_dir=place / "run")
    found: dict[str, Any] = json.loads((place / "run" / "crashes" / "001.json").read_text())
    assert found["arrays"]["0"][1] == [1, 2]
    return found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("arrays", {"0": ["float32", [3], [0.0, 0.0]]}),
        ("arrays", {"0": ["float32", [2], [[0.0], 0.0]]}),
        ("arrays", {"0": ["float32", [2], ["one", "two"]]}),
        ("arrays", {"0": ["float32", [2], [{"a": 1}, None]]}),
        ("arrays", {"0": ["int8", [2], [2**70, 0]]}),
        ("arrays", {"0": ["object", [2], [0, 0]]}),
        ("arrays", {}),
        ("actions", [["agent0", 5]]),
        ("actions", [[{"$tuple": 5}, []]]),
        ("actions", [[[], []]]),
        ("began", 1 << 63),
        ("began", -1),
        ("env_index", 1 << 64),
        ("num_workers", -1),
        ("worker_index", 1 << 200),
        ("origin", ["a"]),
        ("env_config", {"a": {"$tuple": 5}}),
        ("env_config", {"a": {"$float": []}}),
        ("env_config", {"a": {"$space": {"space": "box"}}}),
        ("version", 2),
    ],
)
def test_a_damaged_capsule_is_one_line(capsule: dict[str, Any], key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "001.json"
    path.write_text(json.dumps({**capsule, key: value}))
    # An odd env_config is one that the environment may not know.
    with pytest.raises(MenvError):
        replay(path, env=lambda config: Mute(**config))


@pytest.fixture
def games(tmp_path: Path) -> Path:
    record(lambda obs: 0, "CartPole-v1", tmp_path / "games.parquet", episodes=1)
    return tmp_path / "games.parquet"


def test_a_recording_that_needs_much_more_memory_than_its_size_is_refused(games: Path) -> None:
    kinds = [("reward", pa.list_(pa.int8()))]
    schema = pa.schema(kinds, pq.read_schema(games).metadata)
    number = 100_000_000
    rewards = pa.ListArray.from_arrays([0, number], pa.nulls(number, pa.int8()))
    pq.write_table(pa.table([rewards], schema), games, compression="zstd", write_statistics=False)
    assert games.stat().st_size < 1_000_000
    with pytest.raises(ConfigError, match="1073741824"):
        list(read_episodes(games))
