"""Both engines, one after the other."""

from collections.abc import Iterator

import pytest

from tests.engines.peers import Engine, make_engine
from tests.engines.processes import eventually, lives


@pytest.fixture(params=["process", pytest.param("ray", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine of each kind, and the promise that nobody is left when it has stopped."""
    if request.param == "ray":
        request.getfixturevalue("running_ray")
    made = make_engine(request.param)
    pids: list[int] = []
    start = made.start

    def noted(*args: object, **settings: object) -> object:
        peer = start(*args, **settings)  # type: ignore[arg-type]
        peers.append(peer)
        return peer

    peers: list[object] = []
    made.start = noted  # type: ignore[method-assign,assignment]
    yield made
    pids = [peer.pid for peer in peers if peer.pid is not None]  # type: ignore[attr-defined]
    made.stop(grace=1.0)
    eventually(lambda: not any(map(lives, pids)))
