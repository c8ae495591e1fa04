"""Protobuf text format, as much of it as a model configuration needs.

{"name": "m", "input": [{"dims": [-1, 4]}]} -> text that google.protobuf.text_format reads

A dict is a message, a list a repeated field, a Word an enum member; maps are lists of {"key": ..., "value": ...}.
"""

from collections.abc import Mapping
from typing import Any


class Word(str):
    """An enum's member, written without quotes."""

    __slots__ = ()


def to_pbtxt(message: Mapping[str, Any], indent: str = "") -> str:
    """The message's fields, one a line, in the order given; an empty list writes nothing."""
    return "".join(_field(name, value, indent) for name, value in message.items())


def _field(name: str, value: Any, indent: str) -> str:
    if isinstance(value, Mapping):
        inner = to_pbtxt(value, indent + "  ")
        return f"{indent}{name} {{\n{inner}{indent}}}\n" if inner else f"{indent}{name} {{ }}\n"
    if isinstance(value, list | tuple):
        if value and not isinstance(value[0], Mapping):
            return f"{indent}{name}: [ {', '.join(map(_scalar, value))} ]\n"
        return "".join(_field(name, item, indent) for item in value)
    return f"{indent}{name}: {_scalar(value)}\n"


def _scalar(value: Any) -> str:
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value.encode("utf-8")))}"'
    raise TypeError(f"{value!r} has no place in a model configuration")


def _escaped(byte: int) -> str:
    if byte in b'"\\':
        return "\\" + chr(byte)
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
