"""SAC for continuous actions. Begin with `sac`, then `network`; `learner` has the losses."""

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.algorithms.sac.sac import SAC as SAC
    from menv.algorithms.sac.sac import SACConfig as SACConfig

__all__, __getattr__, __dir__ = lazy_names(__name__)
