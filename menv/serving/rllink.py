"""RLlinkInput: an algorithm learns from RLlink clients, which act by themselves with an ONNX file.

Used as `config["input"] = lambda ioctx: RLlinkInput(ioctx, address, port)`.
"""

from __future__ import annotations

from typing import Any

from menv.errors import ConfigError
from menv.input_context import InputContext
from menv.serving.policy_server import PolicyServerInput
from menv.serving.trainer import Trainer


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
