"""The typed ONNX graph: reading and writing it, its spec, and its meaning."""
