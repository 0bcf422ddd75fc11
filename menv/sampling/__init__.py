"""Sampling: from a `BaseEnv` to training batches.

`Sampler.sample()` returns one fragment of experience. To follow a step, read in this order:

1. `sampler.py` runs the loop and closes the fragment.
2. `rollout_loop.py` polls the environment, adds rows, acts, and sends the actions.
3. `policy_group.py` turns observations into rows and rows into actions, by networks or by `custom_policies.py`.
4. `rollout_buffer.py` stores them and splits them into trajectories (`trajectories.py`).

`episode_tracker.py` knows which episodes run: as objects, or as arrays (`episode_arrays.py`) while no code asks for the
objects.
"""
