"""Callbacks under RLlib's path, `ray.rllib.algorithms.callbacks`; they are in `menv.callbacks`."""

from menv.callbacks import DefaultCallbacks as DefaultCallbacks
from menv.callbacks import make_multi_callbacks as make_multi_callbacks
