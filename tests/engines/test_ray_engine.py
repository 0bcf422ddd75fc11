"""What is Ray's alone: room on a cluster, and the user's own `ray.init`."""

import re
from pathlib import Path

import pytest

from tests.engines.processes import driver, ran
from tests.later import Later

ray = Later("ray")


@pytest.fixture
def address(running_ray: None) -> str:
    """Where the Ray of these tests is."""
    return str(ray.get_runtime_context().gcs_address)


NO_ROOM = """
    import ray
    from menv.errors import NoRoomError
    from menv.workers.engines import make_engine
    from tests.engines.homes import Counter
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    def outcome(peer):
        try:
            return repr(peer.answer())
        except NoRoomError as error:
            return repr(error)
    engine = make_engine("ray", cpus=3.0, patience=8.0)
    outcomes = {}
    for peer in [engine.start(Counter, label=f"worker {index}") for index in (1, 2)]:
        outcomes[outcome(peer)] = peer
    refused = max(outcomes, key=len)
    outcomes["None"].kill()
    again = make_engine("ray", cpus=3.0, patience=60.0)
    print(refused, outcome(again.start(Counter, label="worker 3")), sep=chr(10))
    again.stop()
    engine.stop()
"""


@pytest.mark.slow
def test_an_actor_that_has_no_room_says_so_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    refused, again = ran(driver(tmp_path, NO_ROOM)).splitlines()[-2:]
    assert re.search(r"worker \d: has waited \d+ s for 3 CPU; the cluster has 4, 1 of", refused)
    assert again == "None"


WITH_RUNTIME_ENV = """
    import sys
    from pathlib import Path
    import ray
    folder = Path(FOLDER := sys.argv[2])
    ray.init(
        address=sys.argv[1], log_to_driver=False, logging_level="error",
        runtime_env={
            "py_modules": [str(folder / "modules" / "their_game")],
            "working_dir": str(folder / "work"),
            "env_vars": {"OF_THE_JOB": "yes"},
        },
    )
    from menv.workers.engines import make_engine
    from tests.engines.homes import Counter

    class Own(Counter):
        def look(self):
            import their_game, beside
            return their_game.SIZE, beside.SIZE, their_game.__file__.startswith(FOLDER)

    peer = make_engine("ray").start(Own, label="worker 1")
    peer.ask(Own.look)
    peer.ask(Counter.variable, "OF_THE_JOB")
    print(*[peer.answer() for _ in range(3)])
"""


@pytest.mark.slow
def test_the_runtime_env_of_the_users_job_reaches_actors(tmp_path: Path, address: str) -> None:
    package, work = tmp_path / "modules" / "their_game", tmp_path / "work"
    package.mkdir(parents=True)
    work.mkdir()
    (package / "__init__.py").write_text("SIZE = 5\n")
    (work / "beside.py").write_text("SIZE = 6\n")
    assert ran(driver(tmp_path, WITH_RUNTIME_ENV, address, str(tmp_path))).splitlines()[-1] == (
        "None (5, 6, False) yes"
    )


SHUT_DOWN = """
    import sys
    import ray
    from menv.errors import WorkerLostError
    from menv.workers.engines import make_engine
    from tests.engines.homes import Counter
    engine = make_engine("ray")
    peer, idle = engine.start(Counter, label="worker 1"), engine.start(Counter, label="worker 2")
    print(peer.answer(), idle.answer(), ray.get_runtime_context().gcs_address == sys.argv[1])
    peer.ask(Counter.sleep, 1.0)
    ray.shutdown()
    for peer in (peer, idle):
        peer.ask(Counter.add, 1)
        print(engine.wait([peer]) == [peer])
        try:
            peer.answer()
        except WorkerLostError as error:
            print(error)
    engine.stop()
    print(ray.is_initialized())
"""


@pytest.mark.slow
def test_peers_are_lost_when_the_program_shuts_ray_down(tmp_path: Path, address: str) -> None:
    """And RAY_ADDRESS was honoured before that."""
    program = driver(tmp_path, SHUT_DOWN, address, env={"RAY_ADDRESS": address})
    first, *told, last = ran(program).splitlines()
    assert first == "None None True"
    assert [line.partition(":")[0] for line in told] == ["True", "worker 1", "True", "worker 2"]
    assert all("Ray was shut down" in line for line in (told[1], told[3]))
    assert last == "False"
