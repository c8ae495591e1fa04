"""Fusions: the transformer's operators, recognised in any spelling and written as one node each.

from blockforge.export.fusions import FuseOptions, fuse, fuse_file
report = fuse_file("in.onnx", "out.onnx", FuseOptions(ops="standard"))
print(report.counts, report.explain())
"""

from .files import fuse_file
from .fuse import fuse
from .match import Refusal
from .report import PATTERNS, Fused, FuseOptions, FusionReport

__all__ = ["PATTERNS", "FuseOptions", "Fused", "FusionReport", "Refusal", "fuse", "fuse_file"]
