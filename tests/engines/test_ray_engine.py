"""What is Ray's alone: room on a cluster, the user's own `ray.init`, nodes that disappear."""

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from menv.errors import NoRoomError, WorkerLostError
from menv.workers import ray_engine
from menv.workers.engine import RemoteActor
from menv.workers.ray_engine import RayEngine
from tests.engines.homes import Counter
from tests.engines.processes import driver, eventually, ran


@pytest.fixture
def address(running_ray: None) -> str:
    """Where the Ray of these tests is."""
    return str(ray.get_runtime_context().gcs_address)


def outcome(peer: RemoteActor) -> str:
    """Return what comes of asking a peer."""
    if not peer.pending:
        peer.ask(Counter.add, 1)
    try:
        return repr(peer.answer())
    except NoRoomError as error:
        return repr(error)


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
@pytest.mark.parametrize("others", [0, 1])
def test_an_actor_that_has_no_room_says_so_instead_of_waiting_for_ever(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "ON_ONE_MACHINE_S", 1.0)
    monkeypatch.setattr(ray_engine, "STARTING_S", 60.0)
    foreign: list[Any] = [ray.remote(num_cpus=1)(Counter).remote() for _ in range(others)]
    ray.get([actor.add.remote(1) for actor in foreign])
    # Ray frees the CPUs of an actor only after its process has ended; those of earlier tests count until then.
    cluster: Any = ray
    eventually(lambda: cluster.available_resources().get("CPU") == 4.0 - others)
    engine = RayEngine(2.0)
    crowd = [engine.start(Counter, label=f"worker {index}") for index in range(3)]
    try:
        # Ray gives room in an order of its own.
        without = [peer for peer in crowd if "NoRoom" in outcome(peer)]
        assert len(without) == 1 + others
        found = re.search(
            r"worker \d: has waited (\d+) s for 2 CPU; the cluster has 4, all taken", outcome(without[0])
        )
        assert found is not None
        # Nothing of this engine is starting.
        assert int(found[1]) < ray_engine.STARTING_S
        monkeypatch.setattr(ray_engine, "ON_ONE_MACHINE_S", 60.0)
        next(peer for peer in crowd if peer not in without).kill()
        assert outcome(engine.start(Counter, label="worker 3")) == "None"
    finally:
        engine.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
def test_an_actor_that_is_larger_than_every_node_says_so() -> None:
    peer = RayEngine(100.0, patience=0.5).start(Counter, label="worker 1")
    with pytest.raises(NoRoomError, match="for 100 CPU; the cluster has 4, all taken"):
        peer.answer()


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
def test_a_full_placement_group_is_named_and_one_with_room_is_waited_for() -> None:
    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}])
    ray.get(group.ready(), timeout=120)
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)

    class Trial:
        def run(self) -> list[str]:
            # Also a start that takes longer than this has room.
            ray_engine._CHECK_AFTER_S = 0.0
            engine = RayEngine()
            try:
                crowd = [engine.start(Counter, label=f"worker {number}") for number in (1, 2)]
                return [*map(outcome, crowd)]
            finally:
                engine.stop()

    trial: Any = ray.remote(num_cpus=1, scheduling_strategy=strategy)(Trial)
    try:
        placed, without = sorted(ray.get(trial.remote().run.remote()), key=len)
        assert placed == "None"
        assert re.search(
            r"worker \d: has waited \d+ s for 1 CPU; the placement group of this program has 2 CPU in 2 bundles, 0 of",
            without,
        )
    finally:
        ray.util.remove_placement_group(group)


@pytest.mark.slow
def test_a_program_behind_ray_client_is_refused_when_the_engine_starts(tmp_path: Path) -> None:
    script = """
        from menv.algorithms import PPO
        try:
            PPO(env="CartPole-v1", config={"num_workers": 1, "engine": "ray"})
        except Exception as error:
            print(type(error).__name__, error)
    """
    found = ran(driver(tmp_path, script, env={"RAY_ADDRESS": "ray://127.0.0.1:1"}))
    assert found.startswith(
        "ConfigError engine 'ray': this program is connected by Ray Client (ray://), expected"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
def test_actors_that_take_no_cpu_are_not_counted() -> None:
    engine = RayEngine(0.0)
    crowd = [engine.start(Counter, label=f"host {index}") for index in range(5)]
    assert [peer.answer() for peer in crowd] == [None] * 5
    engine.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("running_ray")
def test_last_words_are_fetched_from_the_node_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RayEngine()
    peer = engine.start(Counter, label="worker 1")
    peer.answer()
    # The file is here, since the node is; a driver elsewhere would not see it.
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    peer.ask(Counter.dies, "killed", "word 1\nword 2\n")
    with pytest.raises(WorkerLostError, match=r"the last lines of its stderr:\nword 1\nword 2$"):
        peer.answer()


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


TOO_SMALL = """
    import ray
    from tests.conftest import ray_with_room
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    for _ in range(2):
        with ray_with_room(), ray_with_room():
            print(ray.cluster_resources()["CPU"])
        print(ray.is_initialized())
"""


@pytest.mark.slow
def test_tests_have_room_where_a_smaller_ray_runs_already(tmp_path: Path) -> None:
    assert ran(driver(tmp_path, TOO_SMALL)).split() == ["4.0", "False"] * 2


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


THREE_NODES = """
    import sys
    import ray
    from ray.cluster_utils import Cluster
    from menv.errors import WorkerLostError
    from menv.workers.engines import make_engine
    from tests.engines.homes import Counter

    class There(Counter):
        def node(self):
            return ray.get_runtime_context().get_node_id()

    small = {"num_cpus": 1, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    nodes = [cluster.add_node(**small) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    engine = make_engine("ray")
    peers = [engine.start(There, label=f"worker {index}") for index in range(3)]
    places = {}
    for peer in peers:
        peer.ask(There.node)
        peer.answer()
        places[peer.answer()] = peer
    print('>', len(places))
    lost = places.pop(nodes[0].node_id)
    lost.ask(Counter.says, "words of the lost one")
    lost.answer()
    for peer in peers:
        peer.ask(Counter.sleep, 1.0)
    cluster.remove_node(nodes[0], allow_graceful=False)
    for peer in peers:
        try:
            print('>', peer is lost, peer.answer())
        except WorkerLostError as error:
            print('>', peer is lost, error)
    for node, peer in places.items():
        peer.ask(Counter.add, 1)
        print('>', peer.answer())
    places.pop(nodes[1].node_id).kill()
    fresh = engine.start(There, label="worker 3")
    fresh.ask(There.node)
    print('>', fresh.answer(), fresh.answer() == nodes[1].node_id)
    engine.stop()
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.slow
def test_a_node_that_disappears_costs_its_own_peers(tmp_path: Path) -> None:
    lines = ran(driver(tmp_path, THREE_NODES)).splitlines()
    lines = [line.removeprefix("> ") for line in lines if line.startswith(("> ", "words"))]
    assert lines[0] == "3"
    assert sorted(line for line in lines[1:] if line.startswith("False")) == ["False 1.0"] * 2
    (told,) = [index for index, line in enumerate(lines) if line.startswith("True ")]
    assert "its process or its node is gone" in lines[told]
    assert "words of the lost one" in lines[told + 1]
    assert lines[-3:] == ["1", "1", "None True"]


def test_a_ray_that_knows_no_unavailable_actors_will_do() -> None:
    # Ray 2.10, which the classic API had last, is such a one.
    script = subprocess.run(
        [
            sys.executable,
            "-c",
            "import ray.exceptions\n"
            "vars(ray.exceptions).pop('ActorUnavailableError', None)\n"
            "from menv.workers import ray_engine\n"
            "print(ray_engine.why('worker 1', None, ray.exceptions.RayActorError()))",
        ],
        capture_output=True,
        text=True,
    )
    assert script.stderr == ""
    assert script.stdout.startswith("worker 1 (was not placed): is lost: The actor ")


@pytest.mark.slow
def test_a_cluster_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    # Sockets lie in Ray's folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        note = Path(short) / "ray" / "ray_current_cluster"
        note.parent.mkdir()
        note.write_text(f"127.0.0.1:{nobody.getsockname()[1]}")
        program = driver(tmp_path, WITHOUT_A_CLUSTER, env={"RAY_TMPDIR": short, "RAY_ADDRESS": ""})
        assert ran(program).splitlines()[-1] == "None 1"


WITHOUT_A_CLUSTER = """
    from menv.workers.engines import make_engine
    from tests.engines.homes import Counter

    engine = make_engine("ray", cpus=0)
    peer = engine.start(Counter, label="worker 1")
    peer.ask(Counter.add, 1)
    print(*[peer.answer() for _ in range(2)])
    engine.stop()
"""
