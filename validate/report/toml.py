"""Nested dictionaries -> TOML text, for the recipe that a reader repeats the build with."""

import json
from collections.abc import Mapping
from typing import Any


def toml_from_dict(data: Mapping[str, Any]) -> str:
    """TOML of strings, numbers, booleans, lists of them, and nested tables; None is left out."""
    return "\n".join(_lines(data, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    values = {k: v for k, v in table.items() if not isinstance(v, Mapping) and v is not None}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in values.items()]
    if path and lines:
        lines.insert(0, f"[{'.'.join(map(_key, path))}]")
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            below = _lines(inner, (*path, key))
            lines += ["", *below] if lines and below else below
    return lines


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)  # nan, inf and 1e-05 are TOML too
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
