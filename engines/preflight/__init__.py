"""Every known reason why a target refuses or silently spoils a model, without building: `blockforge preflight`."""

from .finding import Finding, Report, Severity
from .profile import texts_of
from .row import Row
from .run import preflight, refuse
from .table import ROWS, TABLES, Table

__all__ = [
    "ROWS",
    "TABLES",
    "Finding",
    "Report",
    "Row",
    "Severity",
    "Table",
    "preflight",
    "refuse",
    "texts_of",
]
