"""Env steps in which nobody waits for an action: how many in a row are too many.

`multi_agent` and `custom` count them, and `menv.checking` looks as far.
"""

from __future__ import annotations

from menv.errors import ContractError

MAX_EMPTY_STEPS = 1000
"""So many env steps in a row without a waiting agent are taken for a fault of the environment."""


def too_silent(where: str) -> ContractError:
    """Return the error for a sub-environment in which nobody has waited for longer than that.

    Args:
        where: Begins the message, such as "env 3 step".
    """
    return ContractError(
        f"{where}: nobody waited for an action in {MAX_EMPTY_STEPS} env steps in a row, expected an observation for "
        'an agent that acts next; end the episode with "__all__" once all agents are gone'
    )
