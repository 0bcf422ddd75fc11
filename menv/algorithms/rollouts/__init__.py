"""Where experience comes from: rollouts in this process and in workers, and evaluations."""
