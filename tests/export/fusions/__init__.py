"""Tests of the fusions: random spellings, near misses, exporters' faults, files."""
