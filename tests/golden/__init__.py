"""Golden runs: whether two commits of menv sample, learn and report the same; `python -m tests.golden --help`."""
