"""Quantise an ONNX graph: 8- and 4-bit weights and activations, with scales from calibration."""
