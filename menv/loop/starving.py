"""What a sampler does while polls return nothing: wait a little, and give up in the end."""

from __future__ import annotations

import time

from menv.errors import ContractError

_EMPTY_POLLS = 10_000


def starve(idle: int) -> None:
    """Wait, after so many polls in a row that returned nothing.

    Raises:
        ContractError: They were too many.
    """
    if idle >= _EMPTY_POLLS:
        raise ContractError(
            f"sample: {idle} polls in a row returned nothing and nobody waits, expected rows; "
            "check that the environment's poll returns observations after its send_actions"
        )
    if idle > 100:
        time.sleep(0.001)
