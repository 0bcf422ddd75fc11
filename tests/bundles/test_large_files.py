"""Files that say more than a policy or a run can be are refused before memory or time is spent on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from menv.algorithms import PPO
from menv.errors import ConfigError
from menv.serialization import space_to_json
from tests.bundles.cases import algorithm_of
from tests.bundles.test_costly_graphs import FOLDED
from tests.bundles.test_damage import sign
from tests.checkpoints.forged import forge, forge_file
from tests.checkpoints.runs import SMALL

MEGABYTE = 1 << 20
MEASURE = """
import sys, time
from menv import Policy
from menv.errors import ConfigError
import menv.algorithms, menv.inference.checkpoint_folder, menv.inference.onnx_backend

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

for path in sys.argv[1:]:
    # Forgets the peak of before.
    open("/proc/self/clear_refs", "w").write("5")
    before, began = peak(), time.process_time()
    try:
        if "run" in path:
            menv.algorithms.PPO.from_checkpoint(path)
        else:
            Policy.from_checkpoint(path)
        print(path, "was taken")
    except ConfigError as error:
        took = time.process_time() - began
        most = (peak() - before) // 1024
        print(path.rpartition("/")[2], most, took, str(error).replace("\\n", " "), sep="|")
"""


def box(shape: list[int], dtype: str = "float64") -> dict[str, Any]:
    return {"space": "box", "low": 0, "high": 1, "shape": shape, "dtype": dtype}


EMPTY: dict[str, Any] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def arrays(header: dict[str, Any]) -> bytes:
    """Return a safetensors file without data."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def many(part: dict[str, Any], count: int) -> dict[str, Any]:
    return {"space": "tuple", "spaces": [part] * count}


SPACES: dict[str, tuple[Any, str]] = {
    "a large box": (box([1 << 26]), "numbers in 536870912 bytes, expected at most"),
    "many boxes": (many(box([1 << 20]), 100), "expected at most"),
    "no numbers": (box([0, 1 << 62]), "cannot be made"),
    "a large choice": (
        {"space": "discrete", "n": 1 << 62, "start": 0, "dtype": "int64"},
        "one for each choice",
    ),
    "large choices": (
        {"space": "multi-discrete", "nvec": 1 << 62, "start": 0, "shape": [2], "dtype": "int64"},
        "one for each choice",
    ),
    "flags": ({"space": "multi-binary", "n": 1 << 26}, "expected at most"),
    "a text": (
        {"space": "text", "min_length": 1, "max_length": 1 << 62, "characters": "ab" * MEGABYTE},
        "characters",
    ),
    "many parts": (many(many(box([1]), 100), 100), "4096 parts"),
    "the largest that is read": (box([3 << 20]), "does not fit the rest"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what is said of each folder in whose place it lies."""
    home = tmp_path_factory.mktemp("files")
    said = {}
    with algorithm_of("masked") as algo:
        data = algo.export_policy_checkpoint(tmp_path_factory.mktemp("whole") / "policy")
    for name, (space, why) in SPACES.items():
        shutil.copytree(data, home / name)
        sign(home / name, lambda manifest, space=space: manifest.update(observation_space=space))  # type: ignore[misc]
        said[name] = why
    for name in ("product", "filled", "doubled"):
        folder = Path(shutil.copytree(data, home / name))
        (folder / "acting.onnx").write_bytes(FOLDED[name])
        sign(folder)
        said[name] = "export the policy again"
    folder = Path(shutil.copytree(data, home / "frames"))
    sign(folder, lambda manifest: manifest.update(agent_connectors=[
        ["ObsPreprocessorConnector", {}], ["FrameStackAgentConnector", {"num_frames": 10_000}],
    ]))  # fmt: skip
    said["frames"] = "'agent_connectors' does not fit"
    shutil.copytree(data, home / "spaces in a manifest")
    text = (data / "policy.json").read_text()
    (home / "spaces in a manifest" / "policy.json").write_text(text + " " * 100 * MEGABYTE)
    said["spaces in a manifest"] = "bytes, expected at most"
    shutil.copytree(data, home / "values")
    (home / "values" / "policy.json").write_text("[" + "[]," * 10 * MEGABYTE + "0]")
    said["values"] = "values, expected at most"
    _runs(home, said)
    return said | {"": str(home)}


def _runs(home: Path, said: dict[str, str]) -> None:
    with PPO(env="CartPole-v1", config=SMALL) as algo:
        saved = algo.save(home / "saved")
    folder = Path(shutil.copytree(saved, home / "run 1"))
    (folder / "manifest.json").write_bytes((folder / "manifest.json").read_bytes() + b" " * 100 * MEGABYTE)
    folder = Path(shutil.copytree(saved, home / "run 2"))
    forge_file(folder, "state.json", (folder / "state.json").read_bytes() + b" " * 100 * MEGABYTE)
    said["run 1"] = said["run 2"] = "bytes, expected at most"
    folder = Path(shutil.copytree(saved, home / "run 3"))
    forge(folder, "state.json", ["metrics", "window"], [[]] * (3 << 20))
    said["run 3"] = "values, expected at most"
    folder = Path(shutil.copytree(saved, home / "run 4"))
    forge(folder, "manifest.json", ["config", "observation_space"], {"$space": box([1 << 26])})
    folder = Path(shutil.copytree(saved, home / "run 5"))
    forge(folder, "manifest.json", ["config", "env_config"], {
        str(number): {"$space": box([MEGABYTE + number])} for number in range(50)
    })  # fmt: skip
    said["run 4"] = said["run 5"] = "expected at most"
    folder = Path(shutil.copytree(saved, home / "run 6"))
    forge_file(folder, "learners.safetensors", arrays({str(number): EMPTY for number in range(400_000)}))
    said["run 6"] = "a header of"
    folder = Path(shutil.copytree(saved, home / "run 7"))
    forge(folder, "manifest.json", ["config", "model", "fcnet_hiddens"], [8] * 20_000)
    said["run 7"] = "a list of at most 256 positive integers"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_oversized_files_are_refused_in_two_seconds_with_bounded_memory(files: dict[str, str]) -> None:
    home = files.pop("")
    folders = [str(Path(home) / name) for name in files]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *folders], capture_output=True, text=True, check=True, timeout=120
    )
    lines = [line.split("|", 3) for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == list(files), done.stdout
    for (name, memory, seconds, message), said in zip(lines, files.values(), strict=True):
        assert said in message, name
        # What a graph computes has a bound of its own.
        most = 200 if said != "export the policy again" else 200 + 512
        assert int(memory) < most, (name, memory)
        assert float(seconds) < 2, (name, seconds)


def test_what_cannot_be_read_again_is_not_written() -> None:
    large = gym.spaces.Dict(
        {"a": gym.spaces.Box(0, 1, (1 << 12, 1 << 11), np.uint8), "b": gym.spaces.MultiBinary(1)}
    )
    with pytest.raises(ConfigError, match="8388609"):
        space_to_json(large)
