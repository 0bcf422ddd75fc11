"""DQN (Mnih et al. 2015). Begin with `dqn`, then `learner` and `replay_buffer`; `config` has the settings."""
