"""Nested dictionaries -> TOML text, for the recipe that a reader repeats the build with."""

import json
from collections.abc import Mapping
from typing import Any


def toml_from_dict(data: Mapping[str, Any]) -> str:
    """TOML of strings, numbers, booleans, lists of them, and nested tables; None is left out."""
    return "\n".join(_lines(data, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    inner = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    values = {k: v for k, v in table.items() if k not in inner and v is not None}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in values.items()]
    if path and (lines or not inner):
        lines.insert(0, f"[{'.'.join(map(_key, path))}]")
    for key, below in inner.items():
        lines += [*([""] if lines else []), *_lines(below, (*path, key))]
    return lines


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)  # nan, inf and 1e-05 are TOML too
    return _string(value)


def _string(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which TOML wants escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
