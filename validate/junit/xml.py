"""Test cases -> the XML that pytest writes and Jenkins, GitLab and GitHub's reporters read.

    testsuites > testsuite(tests, failures, errors, skipped) > testcase(classname, name) > failure | skipped | error

Source: the schema junit-10.xsd of Jenkins' xUnit plugin, which pytest validates its own files against.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from datetime import datetime

from .check import Check

ELEMENTS = {"failed": "failure", "skipped": "skipped", "error": "error"}
# What XML 1.0 has no way to write, section 2.2: control characters and lone surrogates.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(
    suite: str, checks: Sequence[Check], created: datetime, seconds: float | None = None
) -> str:
    """The file's text. suite: what ran, e.g. `blockforge validate`; seconds: that it took.

    `time` stands only where something was measured: the schema lets it be left out.
    """
    root = ElementTree.Element("testsuites", name="blockforge")
    states = [check.state for check in checks]
    body = ElementTree.SubElement(
        root,
        "testsuite",
        name=_clean(suite),
        tests=str(len(checks)),
        failures=str(states.count("failed")),
        errors=str(states.count("error")),
        skipped=str(states.count("skipped")),
        timestamp=created.isoformat(timespec="seconds"),
    )
    _set_time(body, seconds)
    for check in checks:
        case = ElementTree.SubElement(
            body,
            "testcase",
            classname=_clean(check.group),
            name=_clean(check.name),
        )
        _set_time(case, check.seconds)
        text = _clean(check.text)
        if check.state in ELEMENTS:
            first = text.partition("\n")[0]
            found = ElementTree.SubElement(case, ELEMENTS[check.state], message=first)
            found.text = text if text != first else None
        elif text:
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _set_time(element: ElementTree.Element, seconds: float | None) -> None:
    if seconds is not None:
        element.set("time", f"{seconds:.3f}")  # the schema's SUREFIRE_TIME has no more digits


def _clean(text: str) -> str:
    """The text with what XML cannot hold spelled out: U+001B as #x1B."""
    return _FORBIDDEN.sub(lambda match: f"#x{ord(match[0]):02X}", text)
