"""Algorithms: PPO, DQN, SAC and QMIX, and everything that trains policies.

Begin with `algorithm.py`, the training loop. `config/` holds the settings, `ppo/`, `dqn/`, `sac/` and `qmix/` the
algorithms, `off_policy/` what the last three share, `networks/` their networks. Experience and evaluations come from
`rollouts/`; `training/` holds the policies, their learners, `learn`, checkpoints and leagues. This is the only package
that imports torch and onnx, and only when something is built.
"""

from menv._lazy_names import refuse_root_import

refuse_root_import(__name__)

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.algorithms.algorithm import Algorithm as Algorithm
    from menv.algorithms.config.algorithm_config import ModelConfig as ModelConfig
    from menv.algorithms.config.algorithm_config import MultiAgentConfig as MultiAgentConfig
    from menv.algorithms.dqn.dqn import DQN as DQN
    from menv.algorithms.dqn.dqn import DQNConfig as DQNConfig
    from menv.algorithms.ppo.advantages import compute_advantages as compute_advantages
    from menv.algorithms.ppo.policy import PPOPolicy as PPOPolicy
    from menv.algorithms.ppo.ppo import PPO as PPO
    from menv.algorithms.ppo.ppo import PPOConfig as PPOConfig
    from menv.algorithms.ppo.ppo import PPORecipe as PPORecipe
    from menv.algorithms.qmix.qmix import QMIX as QMIX
    from menv.algorithms.qmix.qmix import QMIXConfig as QMIXConfig
    from menv.algorithms.recipe import register_algorithm as register_algorithm
    from menv.algorithms.sac.sac import SAC as SAC
    from menv.algorithms.sac.sac import SACConfig as SACConfig
    from menv.tracking.curves import plot_curves as plot_curves

__all__, __getattr__, __dir__ = lazy_names(__name__)
