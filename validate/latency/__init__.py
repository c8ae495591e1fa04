"""How fast a bundle is: interleaved rounds, percentiles, ratios with their intervals, and the machine they came from."""

from .bench import bench
from .opening import Reference
from .record import BenchRecord, LatencyRecord, RatioRecord
from .request import BenchRequest
from .results import sizes_text
from .rounds import Effort

__all__ = [
    "BenchRecord",
    "BenchRequest",
    "Effort",
    "LatencyRecord",
    "RatioRecord",
    "Reference",
    "bench",
    "sizes_text",
]
