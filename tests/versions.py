"""Tests the wheel with the lowest and the newest versions of what it needs: `make test-versions`.

    python -m tests.versions [python3.11 python3.12 python3.13]

Each interpreter gets two new virtual environments, deleted afterwards. The wheel that the sdist builds is installed
there without torch; it checks an environment, acts, is a client and passes a sample of the tests. Then the version of
Python that runs this script gets the torch of `constraints.txt` and passes more tests. Builds of torch for the others
may be gigabytes.
"""

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tests.house.test_project_files import EXTRAS, PROJECT, TESTED
from tests.test_package import ELSEWHERE, build, build_sdist, use

PYTHONS = ["python3.11", "python3.12", "python3.13"]
SAMPLE = (
    "bundles/test_spaces_json.py", "checking/test_actions.py", "checking/test_agent_lifecycles.py",
    "checking/test_codes.py", "checking/test_kinds.py", "connectors/test_obs_preprocessor.py",
    "connectors/test_pipelines.py", "contract/test_contract.py", "envs/test_tictactoe.py",
    "properties/test_batches.py", "sampling/test_rollout_buffer.py", "serving/test_protocol.py",
    "serving/test_transports.py", "test_multi_agent_env.py", "test_sample_batch.py", "test_spaces.py",
    "wrappers_pettingzoo/test_wrong_input.py",
)  # fmt: skip
"""Tests that need no torch."""
TORCH_SAMPLE = (
    "algorithms/test_conv_networks.py", "algorithms/test_dqn_learner.py", "algorithms/test_ppo_loss.py",
    "algorithms_e2e/test_ppo.py", "bundles/test_round_trip.py", "bundles/test_torch_and_onnx.py",
    "checkpoints/test_going_on.py", "engines/test_ray_engine.py", "inference/test_onnx_backend.py",
    "serving/test_client.py", "tracking/test_progress.py",
)  # fmt: skip
TOOLS = ["pytest", "pytest-xdist", "hypothesis"]


def main() -> int:
    """Test with each interpreter and return the exit status."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("pythons", nargs="*", default=PYTHONS, help=" ".join(PYTHONS))
    pythons: list[str] = parser.parse_args().pythons
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(build_sdist(folder)) as archive:
            archive.extractall(folder, filter="data")
        (source,) = folder.glob("menv_rl-*/")
        wheel = build("wheel", source, folder / "wheel")
        # The tests run beside the sdist's other files, and import the package that is installed.
        (source / "menv").rename(folder / "not_imported")
        rows = [(python, lowest) for python in pythons for lowest in (True, False)]
        results = {row: passes(*row, wheel, source) for row in rows}
    for (python, lowest), passed in results.items():
        line = f"{python}, {'lowest' if lowest else 'newest'} versions: {'passed' if passed else 'FAILED'}"
        sys.stdout.write(f"{line}\n")
    return 0 if all(results.values()) else 1


def passes(python: str, lowest: bool, wheel: Path, source: Path) -> bool:
    """Install the wheel into a new environment and return whether the tests pass there."""
    with tempfile.TemporaryDirectory() as folder:
        inside = f"{folder}/bin/python"
        try:
            subprocess.run([python, "-m", "venv", folder], check=True)
            install(inside, lowest, ["", "pettingzoo", "serve", "cli"], str(wheel), *TOOLS)
            use(Path(inside), Path(folder))
            run_tests(inside, source, SAMPLE)
            if Path(python).name == "python{}.{}".format(*sys.version_info):
                install(inside, lowest, ["", "train", "ray"], f"torch=={TESTED['torch']}")
                run_tests(inside, source, TORCH_SAMPLE)
        except (OSError, subprocess.CalledProcessError, AssertionError) as error:
            sys.stderr.write(f"{python}: {error}\n")
            return False
    return True


def install(python: str, lowest: bool, extras: list[str], *others: str) -> None:
    """Install what the extras need, the dependencies of the wheel being an extra without a name."""
    lines = [
        line for extra in extras for line in (EXTRAS[extra] if extra else PROJECT["project"]["dependencies"])
    ]
    wanted = [one for one in map(Requirement, lines) if one.name != "torch"]
    pins = list(bounds(python, wanted)) if lowest else map(str, wanted)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", *pins, *others], env=ELSEWHERE, check=True)
    subprocess.run([*pip, "freeze"], env=ELSEWHERE, check=True)


def bounds(python: str, wanted: list[Requirement]) -> Iterator[str]:
    """Yield the lowest version of each that is allowed and has a build for the interpreter."""
    for one in wanted:
        # No package has the version 0, and pip answers with those that it could install.
        ask = ["download", "--no-deps", "--only-binary", ":all:", f"{one.name}==0"]
        command = [python, "-m", "pip", *ask]
        answer = subprocess.run(command, env=ELSEWHERE, capture_output=True, text=True, check=False).stderr
        (versions,) = re.findall(r"from versions: ([^)]*)\)", answer)
        yield f"{one.name}=={min(one.specifier.filter(versions.split(', ')), key=Version)}"


def run_tests(python: str, source: Path, tests: tuple[str, ...]) -> None:
    """Run tests of the sdist."""
    command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    # Ray 2.10 leaves files open.
    lenient = ["-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    places = [f"tests/{name}" for name in tests]
    subprocess.run([*command, *lenient, *places], cwd=source, env=ELSEWHERE, check=True)


if __name__ == "__main__":
    sys.exit(main())
