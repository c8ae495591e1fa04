"""Puts the helpers of this room, and the engines' small graphs, within reach."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "engines")]  # quantize_graphs, engine_graphs
