"""Typed precision: FP32 graphs of every spelling to FP16 and BF16."""
