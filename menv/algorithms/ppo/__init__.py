"""PPO (Schulman et al. 2017). Begin with `ppo`, which has the settings, then `learner` and `loss`."""

from typing import TYPE_CHECKING

from menv._lazy_names import lazy_names

if TYPE_CHECKING:
    from menv.algorithms.ppo.policy import PPOPolicy as PPOPolicy
    from menv.algorithms.ppo.ppo import PPO as PPO
    from menv.algorithms.ppo.ppo import PPOConfig as PPOConfig
    from menv.algorithms.ppo.ppo import PPORecipe as PPORecipe

__all__, __getattr__, __dir__ = lazy_names(__name__)
