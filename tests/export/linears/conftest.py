"""Puts the small graphs of quantisation and of the engines within reach."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "export" / "quantize"), str(TESTS / "engines")]
