"""What leaves an algorithm: policies on disk, as one file of ONNX, and as clients are given them."""
