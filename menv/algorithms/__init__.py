"""Algorithms: what learns. The only package that imports torch and onnx, and only when something is built."""

from menv._root_link_guard import refuse_root_import

refuse_root_import(__name__)

from typing import TYPE_CHECKING

from menv._names_on_demand import names_on_demand

if TYPE_CHECKING:
    from menv.algorithms.algorithm import Algorithm as Algorithm
    from menv.algorithms.config.dqn_config import DQNConfig as DQNConfig
    from menv.algorithms.config.model_config import ModelConfig as ModelConfig
    from menv.algorithms.config.multi_agent_config import MultiAgentConfig as MultiAgentConfig
    from menv.algorithms.config.ppo_config import PPOConfig as PPOConfig
    from menv.algorithms.config.qmix_config import QMIXConfig as QMIXConfig
    from menv.algorithms.curves import plot_curves as plot_curves
    from menv.algorithms.dqn import DQN as DQN
    from menv.algorithms.learning.advantages import compute_advantages as compute_advantages
    from menv.algorithms.learning.ppo_policy import PPOPolicy as PPOPolicy
    from menv.algorithms.ppo import PPO as PPO
    from menv.algorithms.qmix import QMIX as QMIX
    from menv.algorithms.tensorboard import TensorBoardCallbacks as TensorBoardCallbacks
    from menv.algorithms.tensorboard import TensorBoardWriter as TensorBoardWriter

_HOMES = {
    "Algorithm": "algorithm",
    "DQN": "dqn",
    "DQNConfig": "config.dqn_config",
    "ModelConfig": "config.model_config",
    "MultiAgentConfig": "config.multi_agent_config",
    "PPO": "ppo",
    "PPOConfig": "config.ppo_config",
    "QMIX": "qmix",
    "QMIXConfig": "config.qmix_config",
    "TensorBoardCallbacks": "tensorboard",
    "TensorBoardWriter": "tensorboard",
    "plot_curves": "curves",
    "PPOPolicy": "learning.ppo_policy",
    "compute_advantages": "learning.advantages",
}
__all__ = [
    "DQN",
    "PPO",
    "QMIX",
    "Algorithm",
    "DQNConfig",
    "ModelConfig",
    "MultiAgentConfig",
    "PPOConfig",
    "PPOPolicy",
    "QMIXConfig",
    "TensorBoardCallbacks",
    "TensorBoardWriter",
    "compute_advantages",
    "plot_curves",
]

__getattr__, __dir__ = names_on_demand(__name__, _HOMES)
