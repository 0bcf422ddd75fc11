"""Stock networks: a description, its first weights, its torch form and its acting graphs, one a file.

Nothing is imported here, so that the description can be read where torch and onnx are absent.
"""
