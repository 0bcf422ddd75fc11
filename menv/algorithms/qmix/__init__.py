"""QMIX and VDN for groups of agents. Begin with `qmix`, then `network`; `learner` extends the DQN learner."""

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.algorithms.qmix.qmix import QMIX as QMIX
    from menv.algorithms.qmix.qmix import QMIXConfig as QMIXConfig

__all__, __getattr__, __dir__ = lazy_names(__name__)
