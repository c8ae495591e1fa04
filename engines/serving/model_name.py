"""The name of a served model: one part of a URL and one folder of a repository."""

import re

from ...core.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
LONGEST = 255 - len(".") - len(".XXXXXXXX.partial")  # the folder beside it that is written first


def check_name(name: str) -> None:
    """Raise UsageError unless `name` can be a folder and a part of a URL."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"model name {name!r}",
            found="a model's name is a folder and a part of the URL",
            fix="Use letters, digits, '_', '.' and '-', starting with one of the first three",
        )
    if len(name) > LONGEST:
        raise UsageError(
            f"model name {name[:20]}...",
            found=f"{len(name)} bytes, and a folder's name has room for {LONGEST}",
            fix="Give a shorter --name",
        )
