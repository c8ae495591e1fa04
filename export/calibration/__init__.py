"""Calibration: inputs that show a graph its working ranges, and how a scale follows from what was seen."""
