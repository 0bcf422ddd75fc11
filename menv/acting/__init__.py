"""Acting: from rows of observations to rows of actions, with ONNX Runtime and without torch."""
