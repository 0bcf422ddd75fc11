"""Checks that an environment plays the same episodes in every back-end: in process, in workers, in other processes.

Begin with `verify.py`, which compares; `backends.py` is the table of back-ends, `task.py` what they all play.
"""
