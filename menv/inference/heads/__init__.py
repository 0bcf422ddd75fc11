"""Action heads: one file for each distribution of actions.

`head.py` is the interface, `known.py` finds the head for a space or a file. The file of a head holds everything that is
special about it: sizes, noise, log-probability in numpy and torch, entropy, KL divergence, ONNX nodes, the gradient.
"""
