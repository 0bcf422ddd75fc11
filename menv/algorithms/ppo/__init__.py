"""PPO (Schulman et al. 2017). Begin with `ppo`, then `learner` and `loss`; `config` has the settings."""
