"""Workers: environments and rollout workers in other processes, on this machine or on a Ray cluster.

Begin with `engine.py`, the interface that the process engine and the Ray engine implement, then `remote_envs.py`.
"""
