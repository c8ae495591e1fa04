"""PyTorch -> typed ONNX graph with streamed weights."""
