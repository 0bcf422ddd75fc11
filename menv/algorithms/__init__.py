"""Algorithms: what learns. The only package that imports torch and onnx, and only when something is built."""

from menv._root_link_guard import refuse_root_import

refuse_root_import(__name__)

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from menv.algorithms.advantages import compute_advantages as compute_advantages
    from menv.algorithms.algorithm import Algorithm as Algorithm
    from menv.algorithms.config.dqn_config import DQNConfig as DQNConfig
    from menv.algorithms.config.model_config import ModelConfig as ModelConfig
    from menv.algorithms.config.multi_agent_config import MultiAgentConfig as MultiAgentConfig
    from menv.algorithms.config.ppo_config import PPOConfig as PPOConfig
    from menv.algorithms.config.qmix_config import QMIXConfig as QMIXConfig
    from menv.algorithms.curves import plot_curves as plot_curves
    from menv.algorithms.dqn import DQN as DQN
    from menv.algorithms.ppo import PPO as PPO
    from menv.algorithms.ppo_policy import PPOPolicy as PPOPolicy
    from menv.algorithms.qmix import QMIX as QMIX
    from menv.algorithms.tensorboard import TensorBoardCallbacks as TensorBoardCallbacks
    from menv.algorithms.tensorboard import TensorBoardWriter as TensorBoardWriter

_HOMES = {
    "Algorithm": "menv.algorithms.algorithm",
    "DQN": "menv.algorithms.dqn",
    "DQNConfig": "menv.algorithms.config.dqn_config",
    "ModelConfig": "menv.algorithms.config.model_config",
    "MultiAgentConfig": "menv.algorithms.config.multi_agent_config",
    "PPO": "menv.algorithms.ppo",
    "PPOConfig": "menv.algorithms.config.ppo_config",
    "QMIX": "menv.algorithms.qmix",
    "QMIXConfig": "menv.algorithms.config.qmix_config",
    "TensorBoardCallbacks": "menv.algorithms.tensorboard",
    "TensorBoardWriter": "menv.algorithms.tensorboard",
    "plot_curves": "menv.algorithms.curves",
    "PPOPolicy": "menv.algorithms.ppo_policy",
    "compute_advantages": "menv.algorithms.advantages",
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


def __dir__() -> list[str]:
    """List the public names, for completion."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(
            f"module 'menv.algorithms' has no attribute {name!r}, expected one of {sorted(_HOMES)}"
        )
    return getattr(import_module(_HOMES[name]), name)
