"""Environments by names that another process finds: games of PettingZoo, and kinds that bring many along."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from menv import VectorEnv
from menv.wrappers import ParallelPettingZooEnv, PettingZooEnv
from tests.contract.scripted import IRREGULAR, SoloGym
from tests.contract.scripted import ScriptedEnv as Scripted
from tests.verify.unsteady import Walk


def spread_in_turns(context: Any) -> Any:
    from mpe2 import simple_spread_v3

    return PettingZooEnv(simple_spread_v3.env(max_cycles=8))


def tag_together(context: Any) -> Any:
    """Agents of two kinds, whose spaces differ, and continuous actions."""
    from mpe2 import simple_tag_v3

    return ParallelPettingZooEnv(simple_tag_v3.parallel_env(max_cycles=8, continuous_actions=True))


def connect_four(context: Any) -> Any:
    from pettingzoo.classic import connect_four_v3

    return PettingZooEnv(connect_four_v3.env())


def irregular(context: Any) -> Any:
    """Agents that come late, pause, die and come back, and steps in which nobody waits."""
    return Scripted(IRREGULAR, context.get("world", 0), salt=True)


def vectorised(context: Any) -> Any:
    return VectorEnv.vectorize_gym_envs(lambda index: Walk(), num_envs=3)


def of_gymnasium(context: Any) -> Any:
    return gym.vector.SyncVectorEnv([Walk] * 3, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def external(context: Any) -> Any:
    from menv import ExternalEnv

    class Calls(ExternalEnv):
        def run(self) -> None:
            """Call nobody."""

    return Calls(Walk.action_space, Walk.observation_space)


__all__ = ["SoloGym"]
