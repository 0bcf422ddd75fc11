"""PPO: configuration, loss, learner, and gradients computed without autograd."""
