"""Closed records with the fields of a dataclass, so that a JSON Schema cannot drift from the data that is written."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import create_model

from ..core.records import Record


def record_of(
    kind: type, *, changed: Mapping[str, Any] | None = None, without: tuple[str, ...] = ()
) -> Any:
    """A closed record with the fields of a dataclass, every one required.

    changed: fields of another type in JSON, and those that only JSON has; without: fields that JSON lacks.
    """
    hints = get_type_hints(kind)
    kinds = {f.name: hints[f.name] for f in fields(kind) if f.name not in without}
    made: dict[str, Any] = {n: (hint, ...) for n, hint in (kinds | dict(changed or {})).items()}
    return create_model(kind.__name__, __base__=Record, __doc__=kind.__doc__, **made)
