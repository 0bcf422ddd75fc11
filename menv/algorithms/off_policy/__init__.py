"""What the algorithms share that learn Q-values from replayed experience: settings, recipe, replay buffer."""
