"""DQN (Mnih et al. 2015). Begin with `dqn`, then `learner` and `replay_buffer`; `config` has the settings."""

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.algorithms.dqn.config import DQNConfig as DQNConfig
    from menv.algorithms.dqn.dqn import DQN as DQN

__all__, __getattr__, __dir__ = lazy_names(__name__)
