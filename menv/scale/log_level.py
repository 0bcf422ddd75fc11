"""The level of what a process of menv's own logs, which its driver chose.

Workers set it (`menv.algorithms.rollouts.rollout_worker`), and so do the processes of remote environments
(`far_env`). In the user's own process logging is left to the user.
"""

from __future__ import annotations

import logging


def set_log_level(level: str | None) -> None:
    """Let everything from a level on be written to stderr; None leaves logging alone."""
    if level is not None:
        logging.basicConfig(level=level)
        logging.getLogger().setLevel(level)
