"""`PolicyServerInput` and `RLlinkInput`: an algorithm learns from clients over the network and answers them.

Set `config["input"] = lambda ioctx: PolicyServerInput(ioctx, address, port)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Literal

from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serving.limits import Limits
from menv.serving.served_envs import ServedEnvs
from menv.serving.trainer import Trainer
from menv.serving.transports.access import Access
from menv.serving.transports.transport import Transport

TransportName = Literal["http", "tcp", "websocket"]

_MAX_PORT = 65535


class PolicyServerInput(ServedEnvs):
    """A server for any number of clients, each with any number of episodes.

    Clients request each action, or run the policy themselves and send whole episodes; one port takes both. While the
    algorithm learns, requests for actions wait; the latest weights and policies are sent at once. With an
    `observation_fn`, clients have to request actions: the episodes of clients with local inference are refused, because
    their observations differ from the input of the policy.

    Args:
        ioctx: The argument of the function `config["input"]`.
        address: Address to bind to; any but loopback needs a token.
        port: 0 chooses a free one, see `algo.input_address`. A worker's index is added to any other.
        transport: "http", "tcp", "websocket", or your own transports.
        limits: Limits of each client.
        token: Token that clients must send, see `Access`.
        access: Who may connect, instead of address and token.
        idle_timeout: Seconds without a step after which `train()` returns and reports it; None waits forever.
        settings: See `menv.serving.served_envs.ServedEnvs`.

    Raises:
        ConfigError: A setting is wrong, or other machines could connect without a token.
    """

    def __init__(
        self,
        ioctx: InputContext,
        address: str = "127.0.0.1",
        port: int = 9900,
        *,
        transport: TransportName | Transport | Sequence[Transport] = "http",
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
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _MAX_PORT:
            raise ConfigError(
                f"{type(self).__name__}: port {port!r}, expected an integer from 0 to {_MAX_PORT}; "
                "0 takes one that is free"
            )
        worker_port = port + ioctx.worker_index if port else 0
        transports = (
            transport if isinstance(transport, list | tuple) else [_make_transport(transport, worker_port)]
        )
        access = access or Access(address=address, token=token)
        super().__init__(
            ioctx, transports, limits=limits, access=access, idle_timeout=idle_timeout, **settings
        )


class RLlinkInput(PolicyServerInput):
    """A server for RLlink clients over TCP, which run an ONNX policy themselves; see `PolicyServerInput`.

    Clients that use the menv extension may connect to the same port.

    Args:
        ioctx: The argument of the function `config["input"]`.
        address: Address to bind to; any but loopback needs a token, which RLlink's own clients cannot send.
        port: 0 chooses a free one; a worker's index is added to any other.
        settings: See `PolicyServerInput`.
    """

    def __init__(
        self, ioctx: InputContext, address: str = "127.0.0.1", port: int = 5555, **settings: Any
    ) -> None:
        super().__init__(ioctx, address, port, **{"transport": "tcp", **settings})

    def connect(self, trainer: Trainer) -> None:
        """Start the server; see `ExternalEnvs.connect`.

        Raises:
            ConfigError: Policies see the output of an `observation_fn`, which RLlink clients do not have.
        """
        if trainer.observation_fn:
            raise ConfigError(
                "observation_fn: set beside RLlinkInput, whose clients act by themselves on what they observe, "
                "expected one of the two; show more in the clients' own observations, or have remote clients ask "
                "PolicyServerInput"
            )
        super().connect(trainer)


_TRANSPORTS = {"http": "HttpTransport", "tcp": "TcpTransport", "websocket": "WebSocketTransport"}


def _make_transport(transport: object, port: int) -> Transport:
    if isinstance(transport, Transport):
        return transport
    if isinstance(transport, str) and transport in _TRANSPORTS:
        # Some of the modules need an extra.
        module = importlib.import_module(f"menv.serving.transports.{transport}")
        made: Transport = getattr(module, _TRANSPORTS[transport])(port)
        return made
    raise ConfigError(
        f'transport: {transport!r}, expected "http", "tcp", "websocket" or a Transport; choose one of these'
    )
