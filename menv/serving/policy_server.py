"""PolicyServerInput: an algorithm learns from what `PolicyClient`s play, and answers them.

Used as `config["input"] = lambda ioctx: PolicyServerInput(ioctx, address, port)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from menv.errors import ConfigError
from menv.input_context import InputContext
from menv.serving.carriers.access import Access
from menv.serving.carriers.limits import Limits
from menv.serving.carriers.transport import Transport
from menv.serving.served_envs import ServedEnvs

Carrier = Literal["http", "tcp", "websocket"]

_HIGHEST_PORT = 65535


class PolicyServerInput(ServedEnvs):
    """A server for any number of clients, each with any number of episodes.

    Clients ask for each action, or hold the policy and send whole episodes; one port takes both. While the algorithm
    learns, actions that are asked for wait; weights and policies are sent at once, as they were published last. With
    an `observation_fn` clients have to ask: those that hold the policy would act on something else than it learns from,
    and their episodes are refused.

    Args:
        ioctx: What the function `config["input"]` was given.
        address: What to bind to; anything but this machine needs a token.
        port: 0 takes one that is free; `algo.input_address` tells it. A worker's index is added to any other.
        transport: What carries messages: "http", "tcp", "websocket", or transports of your own.
        limits: Of each client.
        token: What clients have to show, see `Access`.
        access: Everything about who is let in, instead of address and token.
        idle_timeout: Seconds without a step after which `train()` returns, and says so; None waits for ever.
        settings: See `menv.serving.served_envs.ServedEnvs`.

    Raises:
        ConfigError: A setting is wrong, or the server would be open to others without a token.
    """

    def __init__(
        self,
        ioctx: InputContext,
        address: str = "127.0.0.1",
        port: int = 9900,
        *,
        transport: Carrier | Transport | Sequence[Transport] = "http",
        limits: Limits | None = None,
        token: str | None = None,
        access: Access | None = None,
        idle_timeout: float | None = 30.0,
        **settings: Any,
    ) -> None:
        if not isinstance(ioctx, InputContext):
            raise ConfigError(
                f"{type(self).__name__}: its first argument is a {type(ioctx).__name__}, expected the InputContext "
                f"that the function is given; write lambda ioctx: {type(self).__name__}(ioctx, address, port)"
            )
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _HIGHEST_PORT:
            raise ConfigError(
                f"{type(self).__name__}: port {port!r}, expected an integer from 0 to {_HIGHEST_PORT}; "
                "0 takes one that is free"
            )
        number = port + ioctx.worker_index if port else 0
        carriers = transport if isinstance(transport, list | tuple) else [_carrier(transport, number)]
        access = access or Access(address=address, token=token)
        super().__init__(ioctx, carriers, limits=limits, access=access, idle_timeout=idle_timeout, **settings)


def _carrier(transport: object, port: int) -> Transport:
    if isinstance(transport, Transport):
        return transport
    if transport == "http":
        from menv.serving.carriers.http import HttpTransport

        return HttpTransport(port)
    if transport == "tcp":
        from menv.serving.carriers.tcp import TcpTransport

        return TcpTransport(port)
    if transport == "websocket":
        from menv.serving.carriers.websocket import WebSocketTransport

        return WebSocketTransport(port)
    raise ConfigError(
        f'transport: {transport!r}, expected "http", "tcp", "websocket" or a Transport; choose one of these'
    )
