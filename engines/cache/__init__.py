"""Engines that were built before: looked up by everything that goes into one, so that no build is done twice."""

from .key import Key, key_of, settled_parts
from .settings import FOLDER, SIZE, bytes_from_text, open_cache
from .store import EngineCache, Entry, Lookup

__all__ = [
    "FOLDER",
    "SIZE",
    "EngineCache",
    "Entry",
    "Key",
    "Lookup",
    "bytes_from_text",
    "key_of",
    "open_cache",
    "settled_parts",
]
