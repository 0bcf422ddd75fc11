"""Descriptions of networks, their torch forms and their ONNX acting graphs.

Begin with `network_spec`, the interface of a description, and `stock_spec`, the built-in networks; `custom_model` is
the contract of a user's module. Nothing is imported here: descriptions can be read without torch and onnx.
"""
