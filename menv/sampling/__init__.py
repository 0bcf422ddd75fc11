"""Sampling: from a `BaseEnv` to batches.

`Sampler.sample()` returns one fragment of experience. Begin with `sampler.py`; `rollout_loop.py` holds the loop for
every kind of environment, `vector_loop.py` the faster one for environments that step together.
"""
