"""Runs a sample of the tests with the lowest or the newest versions of the dependencies: `make test-versions`.

Each interpreter gets a virtual environment of its own, deleted afterwards. Without the extra `train` there is no
torch, as after `pip install menv-rl`.

    python -m tests.versions lowest --extras serve,cli python3.11 python3.13
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from tests.house.sources import ROOT
from tests.house.test_project_files import EXTRAS, PROJECT

SAMPLE = {
    "": (
        "bundles/test_spaces_json.py", "checking/test_codes.py", "connectors/test_obs_preprocessor.py",
        "connectors/test_pipelines.py", "contract/test_contract.py", "envs/test_tictactoe.py",
        "properties/test_batches.py", "serving/test_messages.py", "test_sample_batch.py", "test_spaces.py",
    ),
    "cli": ("tracking/test_progress.py",),
    "pettingzoo": ("wrappers_pettingzoo/test_wrong_input.py",),
    "serve": ("serving/test_policy_client_lives.py", "serving/test_tls.py", "serving/test_transports.py"),
    "train": (
        "algorithms/test_conv_networks.py", "algorithms/test_dqn_loss.py", "algorithms/test_ppo_loss.py",
        "algorithms_e2e/test_ppo.py", "bundles/test_onnx_export.py", "bundles/test_round_trip.py",
        "checkpoints/test_going_on.py", "inference/test_onnx_backend.py",
    ),
}  # fmt: skip
"""The files of tests that need an extra."""

TOOLS = ("pytest", "pytest-xdist", "hypothesis")


def main() -> int:
    """Run the tests with each interpreter and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("versions", choices=("lowest", "newest"))
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="this interpreter")
    parser.add_argument("--extras", default="", help="such as train,serve (none)")
    parser.add_argument("--pin", action="append", default=[], help="a version instead, such as torch==2.13.0")
    args = parser.parse_args()
    extras = ["", *filter(None, args.extras.split(","))]
    wanted = [*requirements(extras, args.versions == "lowest", args.pin), *TOOLS]
    tests = [f"tests/{name}" for extra in extras for name in SAMPLE.get(extra, ())]
    return max(run(python, wanted, tests) for python in args.pythons)


def requirements(extras: list[str], lowest: bool, pins: list[str]) -> Iterator[str]:
    """Yield what pip shall install."""
    pinned = {Requirement(pin).name for pin in pins}
    lines = [
        *PROJECT["project"]["dependencies"],
        *(one for extra in extras if extra for one in EXTRAS[extra]),
    ]
    for one in map(Requirement, lines):
        (bound,) = (part.version for part in one.specifier if part.operator == ">=")
        if one.name not in pinned:
            yield f"{one.name}=={bound}" if lowest else str(one)
    yield from pins


def run(python: str, wanted: list[str], tests: list[str]) -> int:
    """Install the packages into a new environment, run the tests there and return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        inside = str(Path(folder) / "bin" / "python")
        subprocess.run([inside, "-m", "pip", "install", "--quiet", *wanted], check=True)
        subprocess.run([inside, "-m", "pip", "freeze"], check=True)
        command = [inside, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
        return subprocess.run([*command, *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
