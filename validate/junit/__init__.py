"""Results as a JUnit file, which CI servers read: one test case for each limit.

bundle_checks(manifest), diff_checks(diff), bench_checks(record) -> Check, ... -> junit_xml
"""

from .bench import bench_checks
from .bundle import bundle_checks
from .check import Check, limit_check, not_run
from .diff import diff_checks
from .xml import junit_xml

__all__ = [
    "Check",
    "bench_checks",
    "bundle_checks",
    "diff_checks",
    "junit_xml",
    "limit_check",
    "not_run",
]
