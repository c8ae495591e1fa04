"""Planted faults and near misses of the first divergence."""
