"""PolicyServerInput: an algorithm learns from what `PolicyClient`s play, and answers them.

Used as `config["input"] = lambda ioctx: PolicyServerInput(ioctx, address, port)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from menv.env_context import InputContext
from menv.errors import ConfigError
from menv.serving.client_state import Trainer
from menv.serving.served_envs import ServedEnvs
from menv.serving.transports.access import Access
from menv.serving.transports.transport import Limits, Transport

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
        from menv.serving.transports.http import HttpTransport

        return HttpTransport(port)
    if transport == "tcp":
        from menv.serving.transports.tcp import TcpTransport

        return TcpTransport(port)
    if transport == "websocket":
        from menv.serving.transports.websocket import WebSocketTransport

        return WebSocketTransport(port)
    raise ConfigError(
        f'transport: {transport!r}, expected "http", "tcp", "websocket" or a Transport; choose one of these'
    )


# SEAM menv.serving.rllink
# RLlinkInput: an algorithm learns from RLlink clients, which act by themselves with an ONNX file.
#
# Used as `config["input"] = lambda ioctx: RLlinkInput(ioctx, address, port)`.


class RLlinkInput(PolicyServerInput):
    """A server that speaks RLlink over TCP to any number of clients; see `PolicyServerInput`.

    Clients that speak more than RLlink are welcome on the same port.

    Args:
        ioctx: What the function `config["input"]` was given.
        address: What to bind to; anything but this machine needs a token, which RLlink's own clients cannot show.
        port: 0 takes one that is free; a worker's index is added to any other.
        settings: See `PolicyServerInput`.
    """

    def __init__(
        self, ioctx: InputContext, address: str = "127.0.0.1", port: int = 5555, **settings: Any
    ) -> None:
        super().__init__(ioctx, address, port, **{"transport": "tcp", **settings})

    def connect(self, trainer: Trainer) -> None:
        """Let clients in; see `ExternalEnvs.connect`.

        Raises:
            ConfigError: What policies see is made by an `observation_fn`, which clients that act by themselves lack.
        """
        if trainer.observation_fn:
            raise ConfigError(
                "observation_fn: set beside RLlinkInput, whose clients act by themselves on what they observe, "
                "expected one of the two; show more in the clients' own observations, or have remote clients ask "
                "PolicyServerInput"
            )
        super().connect(trainer)
