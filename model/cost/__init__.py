"""Parameters, FLOPs, bytes and the roofline time of a decoder, sub-layer by sub-layer, for named GPUs."""

from .count import cost
from .formats import FORMATS
from .parts import SubLayer
from .report import CostReport, cost_report
from .result import Cost, Mode, Row

__all__ = ["FORMATS", "Cost", "CostReport", "Mode", "Row", "SubLayer", "cost", "cost_report"]
