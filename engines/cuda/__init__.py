"""TensorRT engines on a GPU: memory, streams, graphs and execution contexts, each freed exactly once."""
