"""Where experience comes from: environments here or in workers, fragments, and what is added before anybody learns."""
