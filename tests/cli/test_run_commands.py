"""`show`, `export`, `serve` and `doctor` on one trained run."""

import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import gymnasium as gym
import pytest

import menv
from menv import Policy
from menv.cli.main import main
from menv.serving import PolicyClient
from menv.tracking import Run
from tests.house.test_importing import python
from tests.serving.certificates import made_in, needs_openssl
from tests.serving.doors import HTTP, Client, http_response, http_wrap

LISTENING = re.compile(r"listening at 127\.0\.0\.1:(\d+)")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "pole"
    small = ["--config", "train_batch_size=64", "--config", "sgd_minibatch_size=64", "--config", "lr=0.002"]
    assert (
        main(
            [
                "train",
                "CartPole-v1",
                *small,
                "--no-zoo",
                "--stop",
                "training_iteration=2",
                "--run-dir",
                str(run),
            ]
        )
        == 0
    )
    return run


@pytest.fixture
def run(trained: Path, folder: Path) -> str:
    """The folder of a trained run in the working directory."""
    shutil.copytree(trained, folder / "pole")
    return "pole"


def test_show_prints_results_command_and_checkpoints(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(run) / "command.txt").write_text("menv train CartPole-v1\n")
    assert main(["show", run]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in (
        ["run", "pole"],
        ["command", "menv", "train", "CartPole-v1"],
        ["digest", Run(run).digest],
        ["training_iteration", "2"],
        ["num_env_steps_sampled", "128"],
        ["checkpoint", "pole/checkpoints/000002"],
        ["policy", "default_policy"],
    ):
        assert line in lines


def test_export_copies_policies_that_need_no_torch(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", run]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "pole-policies"
    assert main(shlex.split(shown[1].partition("menv ")[2])) == 0
    assert main(["export", run, "-o", "one", "--policy", "default_policy"]) == 0
    assert not list(Path().rglob("*.py"))[1:], "corridors.py is the fixture's"
    policy = Policy.from_checkpoint("one")
    assert isinstance(policy, Policy)
    obs = gym.make("CartPole-v1").reset(seed=0)[0]
    several = Policy.from_checkpoint("pole-policies")
    assert isinstance(several, dict)
    assert policy.act(obs) == several["default_policy"].act(obs)
    code = f"import os, sys; os.chdir({os.getcwd()!r}); from menv.cli.main import main"
    done = python(
        f"{code}; assert main(['export', 'pole', '-o', 'two']) == 0; assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["pole", "--policy", "blue"], "--policy blue: "),
        (["pole", "-o", "pole"], "-o pole: "),
        (["gone"], " gone "),
    ],
)  # fmt: skip
def test_export_refuses_what_cannot_be_copied(
    run: str, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    assert main(["export", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("menv export: error: ")
    assert error in line


@pytest.fixture
def serving() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def played(address: str, token: str | None = None, steps: int = 80) -> None:
    env = gym.make("CartPole-v1")
    with PolicyClient(address, "remote", token=token) as client:
        while steps > 0:
            obs, _ = env.reset(seed=steps)
            episode, over = client.start_episode(), False
            while not over:
                obs, reward, terminated, truncated, _ = env.step(client.get_action(episode, obs))
                over, steps = terminated or truncated, steps - 1
                client.log_returns(episode, float(reward))
            client.end_episode(episode, obs)


@pytest.mark.slow_unless("False-1")
@pytest.mark.parametrize(
    ("frozen", "number"), [(True, signal.SIGINT), (False, signal.SIGTERM), (False, signal.SIGHUP)]
)
def test_serve_answers_clients_and_learns_unless_it_is_frozen(
    run: str, serving: list[subprocess.Popen[str]], frozen: bool, number: signal.Signals
) -> None:
    Path("token").write_text("a long secret\n")
    command = ["menv.cli", "serve", run, "--port", "0", "--token-file", "token", *["--frozen"] * frozen]
    environment = {**os.environ, "PYTHONPATH": str(Path(menv.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment,
    )  # fmt: skip
    serving.append(process)
    assert process.stdout is not None
    port = next(found[1] for line in process.stdout if (found := LISTENING.search(line)))
    played(f"http://127.0.0.1:{port}", "a long secret")
    process.send_signal(number)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 128 + number, said
    iterations = [result["training_iteration"] for result in Run(run).results()]
    assert iterations[:2] == [1, 2]
    assert (len(iterations) > 2) is not frozen
    if not frozen:
        assert int((Path(run) / "checkpoints" / "LATEST").read_text()) == iterations[-1]
        assert Run(run).command.endswith(f"menv serve {run} --port 0 --token-file token")
        assert "a long secret" not in (Path(run) / "config.json").read_text()
        assert main(["evaluate", run, "--episodes", "1"]) == 0


@needs_openssl
def test_serve_takes_host_names_web_pages_and_a_certificate(
    run: str, serving: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    certificate, key = made_in(tmp_path)
    command = [
        "menv.cli", "serve", run, "--frozen", "--port", "0", "--allow-host", "lab.example", "--allow-origin",
        "https://page.example", "--tls-cert", str(certificate), "--tls-key", str(key),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(menv.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment,
    )  # fmt: skip
    serving.append(process)
    assert process.stdout is not None
    port = next(int(found[1]) for line in process.stdout if (found := LISTENING.search(line)))
    page, other = "Origin: https://page.example\r\n", "Host: other.example\r\n"
    trusting = ssl.create_default_context(cafile=certificate)
    for headers, status in ((f"Host: lab.example\r\n{page}", 200), (other, 403), (other, 403)):
        with Client(HTTP, ("127.0.0.1", port), tls=trusting) as one:
            one.raw(http_wrap(b'{"type": "GET_CONFIG"}', headers))
            assert http_response(one.file)[0] == status
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[0]
    (told,) = [line for line in said.splitlines() if "menv serve --allow-host" in line]
    assert "'other.example'" in told


def test_serve_refuses_a_port_that_is_taken_and_a_token_that_cannot_be_read(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", run, "--frozen", "--port", str(port)]) == 2
    assert f"port {port} at 127.0.0.1" in capsys.readouterr().err
    assert main(["serve", run, "--token-file", "gone"]) == 2
    assert "--token-file gone: " in capsys.readouterr().err


def test_doctor_reports_this_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"menv {menv.__version__}, Python ")
    found = {line.split()[0]: line for line in lines}
    assert f"numpy {metadata.version('numpy')}" in found["packages"]
    assert f"torch {metadata.version('torch')}" in found["train"]
    assert not {"all", "missing"} & found.keys()


def test_doctor_names_the_extra_of_a_missing_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = ["numpy>=1.26,<3", 'nowhere>=1; extra == "serve"', 'nowhere>=1; extra == "all"']
    monkeypatch.setattr(metadata, "requires", lambda name: needed)
    assert main(["doctor"]) == 0
    *_, packages, serve, missing = capsys.readouterr().out.splitlines()
    assert packages.split() == ["packages", "numpy", metadata.version("numpy")]
    assert serve.split() == ["serve", "nowhere", "(missing)"]
    assert missing == "missing     extra serve: pip install 'menv-rl[serve]'"
