"""Programs that drive engines: what reaches the other side, and what is left when they end in one way or another."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.engines.processes import PATIENCE_S, driver, eventually, lives, ran
from tests.house.sources import ROOT


@pytest.fixture(params=["process", "ray"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an engine; drivers use the Ray of these tests, as they would use a cluster."""
    if request.param == "ray":
        request.getfixturevalue("running_ray")
        import ray

        monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    return str(request.param)


BESIDE = """
    import sys
    import game
    from menv.workers.engines import make_engine

    class OwnError(Exception):
        pass

    class Own:
        def __init__(self, start):
            self.game = game.Game(start)
            self.factor = FACTOR

        def play(self, double):
            return double(self.game.size) * self.factor

        def fail(self):
            raise OwnError("of the script")

    FACTOR = 10
    engine = make_engine(sys.argv[1])
    peer = engine.start(Own, 4, label="worker 1")
    peer.ask(Own.play, lambda size: 2 * size)
    peer.ask(Own.fail)
    print(peer.answer(), peer.answer())
    try:
        peer.answer()
    except OwnError as error:
        print(error)
"""


@pytest.mark.slow_unless("process*")
def test_a_script_sends_its_own_classes_and_the_modules_next_to_it(tmp_path: Path, kind: str) -> None:
    (tmp_path / "game.py").write_text(
        "class Game:\n    def __init__(self, size):\n        self.size = size\n"
    )
    assert ran(driver(tmp_path, BESIDE, kind)).splitlines()[-2:] == ["None 80", "of the script"]


@pytest.mark.slow_unless("process*")
def test_modules_are_found_where_the_driver_finds_them(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far_game.py").write_text("def size():\n    return 7\n")
    text = """
        import pathlib
        import sys
        sys.path.insert(0, sys.argv[2])
        sys.path.append(pathlib.Path(sys.argv[2]))  # is not looked at by Python itself
        from far_game import size
        from menv.workers.engines import make_engine
        from tests.engines.homes import Counter
        peer = make_engine(sys.argv[1]).start(Counter, label="worker 1")
        peer.ask(Counter.echo, size)
        print(peer.answer(), peer.answer()())
    """
    assert ran(driver(tmp_path, text, kind, str(tmp_path / "elsewhere"))).split()[-2:] == ["None", "7"]


def test_a_process_has_the_variables_of_its_driver_and_one_thread_for_linear_algebra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    text = """
        import os
        from menv.workers.engines import make_engine
        from tests.engines.homes import Counter
        os.environ["OF_THE_DRIVER"] = "here"
        peer = make_engine("process").start(Counter, label="worker 1")
        for name in ("OF_THE_DRIVER", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            peer.ask(Counter.variable, name)
        print(*[peer.answer() for _ in range(4)])
    """
    clean = {"OPENBLAS_NUM_THREADS": "3"}
    assert ran(driver(tmp_path, text, env=clean)) == "None here 1 3\n"


LEAVING = """
    import sys
    from menv.workers.engines import make_engine
    from tests.engines.homes import Counter
    engine = make_engine(sys.argv[1])
    peers = [engine.start(Counter, 0, sys.argv[2], label=f"worker {index}") for index in range(2)]
    for peer in peers:
        peer.answer()
    peers[0].ask(Counter.sleep, 60.0)
    print(*[peer.pid for peer in peers])
    if sys.argv[3] == "crash":
        raise RuntimeError("of the driver")
"""


@pytest.mark.slow_unless("process*")
@pytest.mark.parametrize("how", ["end", pytest.param("crash", marks=pytest.mark.slow)])
def test_a_driver_that_ends_without_stop_leaves_no_process(tmp_path: Path, kind: str, how: str) -> None:
    program = driver(tmp_path, LEAVING, kind, str(tmp_path), how)
    out, err = program.communicate(timeout=2 * PATIENCE_S)
    pids = [int(pid) for pid in out.split()[-2:]]
    eventually(lambda: not any(map(lives, pids)))
    if how == "end":
        assert (program.returncode, err) == (0, "")
    else:
        assert err.rstrip().endswith("RuntimeError: of the driver")
    assert (tmp_path / str(pids[1])).exists() or kind == "ray"


STAYING = """
    import sys, time
    from menv.workers.engines import make_engine
    from tests.engines.homes import Counter
    engine = make_engine(sys.argv[1])
    peers = [engine.start(Counter, label=f"worker {index}") for index in range(2)]
    for peer in peers:
        peer.answer()
    peers[0].ask(Counter.sleep, 600.0)
    print(*[peer.pid for peer in peers], flush=True)
    time.sleep(600)
"""


@pytest.mark.slow_unless("process*")
def test_a_killed_driver_leaves_no_process(tmp_path: Path, kind: str) -> None:
    """One of the two is in the middle of a call that takes ten minutes."""
    program = driver(tmp_path, STAYING, kind)
    assert program.stdout is not None
    pids = [int(pid) for pid in program.stdout.readline().split()[-2:]]
    assert all(map(lives, pids))
    program.kill()
    eventually(lambda: not any(map(lives, pids)))
    program.communicate()


@pytest.mark.slow
def test_a_driver_that_started_ray_itself_stops_all_of_it(tmp_path: Path) -> None:
    text = STAYING.replace("print(*", "print(*children(), *")
    text = text.replace("    engine =", "    from tests.engines.processes import children\n    engine =")
    program = driver(tmp_path, text, "ray")
    assert program.stdout is not None
    pids = [int(pid) for pid in program.stdout.readline().split()]
    assert len(pids) > 4
    assert all(map(lives, pids))
    program.kill()
    eventually(lambda: not any(map(lives, pids)))
    program.communicate()


INTERRUPTED = """
    import signal, sys
    from menv.workers.engines import make_engine
    from tests.engines.homes import Counter
    # Shells start what runs in the background with this signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    engine = make_engine(sys.argv[1])
    peer = engine.start(Counter, label="worker 1")
    peer.answer()
    peer.ask(Counter.sleep, 2.0)
    peer.ask(Counter.add, 3)
    print("waiting", flush=True)
    try:
        peer.answer()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(peer.answer(), peer.answer(), flush=True)
    engine.stop()
"""


@pytest.mark.slow_unless("process*")
def test_ctrl_c_means_the_driver_alone(tmp_path: Path, kind: str) -> None:
    """A terminal sends the signal to the driver's whole process group; what was asked is answered all the same."""
    program = driver(tmp_path, INTERRUPTED, kind, start_new_session=True)
    assert program.stdout is not None
    while program.stdout.readline() not in {"waiting\n", ""}:
        pass
    time.sleep(0.3)
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=2 * PATIENCE_S)
    assert (program.returncode, out, err) == (0, "interrupted\n2.0 3\n", "")


def test_what_a_process_writes_to_stderr_is_passed_on_in_whole_lines(tmp_path: Path) -> None:
    text = """
        from menv.workers.engines import make_engine
        from tests.engines.homes import Counter
        engine = make_engine("process")
        peer = engine.start(Counter, label="worker 1")
        for words in ("one", "two\\nthree", "x" * 100_000):
            peer.ask(Counter.says, words)
        [peer.answer() for _ in range(4)]
        engine.stop()
    """
    program = driver(tmp_path, text)
    out, err = program.communicate(timeout=2 * PATIENCE_S)
    assert (out, err) == ("", "one\ntwo\nthree\n" + "x" * 100_000 + "\n")


def test_what_an_object_started_ends_with_its_process(tmp_path: Path) -> None:
    text = """
        import os, signal
        from menv.workers.engines import make_engine
        from tests.engines.homes import Counter
        engine = make_engine("process")
        peers = [engine.start(Counter, label=f"worker {index}") for index in range(2)]
        for peer in peers:
            peer.answer()
            peer.ask(Counter.runs)
        print(*[peer.answer() for peer in peers], flush=True)
        peers[0].kill()
        os.kill(peers[1].pid, signal.SIGKILL)
        peers[1].ask(Counter.add, 1)
        try:
            peers[1].answer()
        except Exception as error:
            print(error)
        engine.stop()
    """
    first, *rest = ran(driver(tmp_path, text)).splitlines()
    assert "SIGKILL" in rest[0]
    eventually(lambda: not any(lives(int(pid)) for pid in first.split()))


def test_a_fork_of_the_driver_can_neither_use_nor_stop_the_drivers_processes(
    tmp_path: Path,
) -> None:
    text = """
        import os, sys
        from menv.errors import CallOrderError
        from menv.workers.engines import make_engine
        from tests.engines.homes import Counter
        engine = make_engine("process")
        peer = engine.start(Counter, label="worker 1")
        peer.ask(Counter.add, 3)
        child = os.fork()
        if not child:
            for call in (peer.answer, lambda: peer.ask(Counter.add, 4), lambda: engine.wait([peer])):
                try:
                    call()
                except CallOrderError as error:
                    print(str(error).partition(" (")[0])
            engine.stop()
            peer.kill()
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(peer.answer(), peer.answer())
        peer.ask(Counter.add, 3)
        print(peer.answer())
    """
    assert ran(driver(tmp_path, text)) == "worker 1\n" * 3 + "0\nNone 3\n6\n"


OPTIONS = """
    import os, shutil, sys
    from menv.workers.engines import make_engine
    class Own:
        def told(self):
            return sys.flags.optimize, sys.warnoptions
    engine = make_engine("process")
    for gone in (False, True):
        if gone:
            shutil.rmtree(os.getcwd())
            sys.path.insert(0, "")
        peer = engine.start(Own, label="worker 1")
        peer.ask(Own.told)
        print(peer.answer(), *peer.answer())
    engine.stop()
"""


@pytest.mark.slow
def test_a_process_has_the_options_of_its_driver_and_none_of_the_modules_of_its_working_directory(
    tmp_path: Path,
) -> None:
    script, folder = tmp_path / "driver.py", tmp_path / "folder"
    script.write_text(textwrap.dedent(OPTIONS))
    folder.mkdir()
    (folder / "json.py").write_text("raise ImportError('not the one of the standard library')\n")
    command = [sys.executable, "-O", "-W", "ignore", str(script)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert ran(program) == "None 1 ['ignore']\n" * 2


WITHOUT_RAY = """
    import sys
    class NoRay:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "ray":
                raise ModuleNotFoundError(f"No module named {name!r}", name="ray")
    sys.meta_path.insert(0, NoRay())
    from menv.workers.engines import make_engine
    print(make_engine().name)
    try:
        make_engine("ray")
    except ImportError as error:
        print(type(error).__name__, error)
"""


def test_without_ray_processes_are_used_and_ray_says_how_to_install_it(tmp_path: Path) -> None:
    name, told = ran(driver(tmp_path, WITHOUT_RAY)).splitlines()
    assert name == "process"
    assert told.startswith("MissingExtraError engine 'ray': the package ray is not installed")
    assert "pip install 'menv-rl[ray]'" in told


def test_a_process_needs_neither_torch_nor_ray_nor_numpy_until_it_is_asked(tmp_path: Path) -> None:
    code = (
        "import sys, menv.workers.worker_process; "
        "print(*({'torch', 'ray', 'numpy', 'onnxruntime'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("\n", "")
