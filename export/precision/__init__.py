"""An FP32 graph -> the same graph typed in FP16 or BF16, right by construction.

prepare -> ranges -> exact repair by powers of two -> islands -> types and casts
"""

from .edges import cast_edges
from .options import PrecisionOptions
from .ranges import Ranges, measure_ranges
from .report import PrecisionReport
from .typed import repair_model, typed_file, typed_model

__all__ = [
    "PrecisionOptions",
    "PrecisionReport",
    "Ranges",
    "cast_edges",
    "measure_ranges",
    "repair_model",
    "typed_file",
    "typed_model",
]
