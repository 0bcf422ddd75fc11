"""Checks that an environment plays the same episodes in every back-end; `verify.py` has all of it."""
