"""Adapters: one file for each kind of environment, all of them giving the rows of a `BaseEnv`."""
