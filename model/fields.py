"""Typed look-ups in the metadata of a checkpoint, which may hold anything."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..core.errors import UsageError

_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """The key-value pairs of `source` (a config.json, a GGUF header).

    Each look-up returns `default` where the key is absent or null, and raises UsageError where it has no
    default or the value has another type.
    """

    source: str
    values: Mapping[str, Any]

    def whole(self, key: str, default: Any = _REQUIRED) -> int:
        """A whole number."""
        return cast(int, self._get(key, default, "a whole number", (int,)))

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A number."""
        return float(self._get(key, default, "a number", (int, float)))

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        """True or false."""
        return cast(bool, self._get(key, default, "true or false", (bool,)))

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """A string."""
        return cast(str, self._get(key, default, "a string", (str,)))

    def array(self, key: str, default: Any = _REQUIRED) -> list[Any]:
        """A list."""
        return cast(list[Any], self._get(key, default, "a list", (list,)))

    def fields(self, key: str) -> "Fields | None":
        """A nested object, None where the key is absent or null."""
        found = self._get(key, None, "an object", (dict,))
        return None if found is None else Fields(f"{self.source}, {key}", found)

    def require(self, key: str, value: Any, *, absent: Any, why: str) -> None:
        """Raise UsageError unless `key` has `value`; `absent` is what a missing key means."""
        found = self.values.get(key)
        found = absent if found is None else found
        if found != value:
            raise UsageError(
                self.source, found=f"{key} is {found!r}", fix=f"{why}: only {value!r} works"
            )

    def _get(self, key: str, default: Any, kind: str, types: tuple[type, ...]) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise UsageError(self.source, found=f"no {key}", fix=f"Give {key}, {kind}")
            return default
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise UsageError(self.source, found=f"{key} is {value!r}", fix=f"It must be {kind}")
        return value
