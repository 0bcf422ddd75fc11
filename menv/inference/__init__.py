"""Inference: from rows of observations to rows of actions, with ONNX Runtime and without torch.

Begin with `backend.py`, the interface between the sampler and whatever runs the networks. Policies on disk are written
and read by `policy_bundle.py`.
"""
