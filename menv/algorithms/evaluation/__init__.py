"""Evaluations: episodes that policies play without learning, in environments of their own, here or in workers."""
