"""DQN (Mnih et al. 2015). Begin with `dqn`, which has the settings, then `learner`."""

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.algorithms.dqn.dqn import DQN as DQN
    from menv.algorithms.dqn.dqn import DQNConfig as DQNConfig

__all__, __getattr__, __dir__ = lazy_names(__name__)
