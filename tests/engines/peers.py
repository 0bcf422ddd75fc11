"""Engines and their peers, as the tests of this folder and of remote environments start and ask them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from menv.workers.engine import Engine as Engine
from menv.workers.engine import EngineName as EngineName
from menv.workers.engine import RemoteActor as RemoteActor
from menv.workers.engine import RemoteError as RemoteError
from menv.workers.engine import RemoteTraceback as RemoteTraceback
from menv.workers.engine import T as T
from menv.workers.engine import Ts as Ts
from menv.workers.engines import make_engine as make_engine
from menv.workers.messages import UnsendableError as UnsendableError
from tests.engines.homes import Counter


def started(
    engine: Engine, make: Callable[..., Any] = Counter, *args: Any, label: str = "worker 1"
) -> RemoteActor:
    """Return a peer whose object is there."""
    peer = engine.start(make, *args, label=label)
    assert peer.answer() is None
    return peer


def asked(peer: RemoteActor, method: Callable[[Any, *Ts], object], *args: *Ts) -> Any:
    peer.ask(method, *args)
    return peer.answer()
