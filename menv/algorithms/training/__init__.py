"""How policies learn: the set of policies, their learners, `learn`, checkpoints and leagues."""
