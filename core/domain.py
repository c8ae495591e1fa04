"""The names that the graph's writers and readers share."""

DOMAIN = "blockforge"  # ONNX domain of the fused operators
DOMAIN_VERSION = 1
