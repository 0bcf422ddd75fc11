"""How policies learn: a learner for each algorithm, its loss and returns, what is replayed, the optimizer."""
