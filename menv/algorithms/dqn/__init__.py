"""DQN: configuration, replay buffer, and learners for feed-forward and recurrent networks."""
