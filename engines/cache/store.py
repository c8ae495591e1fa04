"""The cache on disk: one folder for each engine, written whole or not at all, the least used removed first.

    ROOT/engines/<digest>/entry.json   the key's parts, size and SHA-256 of each file, what the builder reported
    ROOT/engines/<digest>/<file>       e.g. plan, listing.txt
    ROOT/.NAME.XXXXXXXX.partial        being written, or on its way out

No lock is needed between processes: an entry appears and goes by a rename, and is compared with its hashes when it is
taken. Of two that write one entry the first wins. The file time of entry.json is the time of its last use.
"""

import contextlib
import errno
import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...core.errors import UsageError
from ...core.manifest import FileRecord
from ...core.partial import partial_folder, sweep
from ...core.records import Record
from .key import CHUNK, CONTENTS, SHORT, Key

log = logging.getLogger(__name__)

ENTRY = "entry.json"
TAKEN = (errno.EEXIST, errno.ENOTEMPTY)  # what renaming onto a folder with files gives


class EntryRecord(Record):
    """What entry.json says."""

    parts: dict[str, str]
    files: dict[str, FileRecord]
    result: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One folder of the cache; record is None where its entry.json cannot be read. last_used: seconds since 1970."""

    digest: str
    folder: Path
    record: EntryRecord | None
    bytes: int
    last_used: float

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        parts = dict(self.record.parts) if self.record else {}
        return {
            "entry": self.digest,
            "bytes": self.bytes,
            "last_used": self.last_used,
            "parts": parts,
        }


@dataclass(frozen=True, slots=True)
class Lookup:
    """Whether the cache had the engine, and why or why not; result: what the builder reported when it built it."""

    reason: str
    result: Mapping[str, Any] | None = None

    @property
    def hit(self) -> bool:
        return self.result is not None


class EngineCache:
    """A folder of engines that holds `max_bytes` at most."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root, self.max_bytes = root, max_bytes

    def look(self, key: Key) -> Lookup:
        """Whether there is an entry for `key`, without reading its files."""
        record = _read(self._folder(key.digest))
        if record is not None:
            reason = f"entry {key.digest[:SHORT]} has the same {len(key.parts)} parts"
            return Lookup(reason, record.result)
        return Lookup(key.explain((e.digest, e.record.parts) for e in self.entries() if e.record))

    def alike(self, settled: Mapping[str, str]) -> tuple[Entry, ...]:
        """The entries with just these parts besides graph and weights."""
        return tuple(
            entry
            for entry in self.entries()
            if entry.record is not None
            and {n: v for n, v in entry.record.parts.items() if n not in CONTENTS} == settled
        )

    def fetch(self, key: Key, folder: Path) -> Lookup:
        """Copy the files of `key`'s entry to `folder`, compared with their hashes on the way.

        A damaged entry is removed and counts as none. Raises UsageError when `folder` cannot be written.
        """
        source = self._folder(key.digest)
        record, found = _read(source), self.look(key)
        if record is None:
            return found
        for name, expected in record.files.items():
            if _copied(source / name, folder / name) != expected.sha256:
                self._remove(source)
                return Lookup(
                    f"entry {key.digest[:SHORT]} was damaged: {name} is not what was stored"
                )
        with contextlib.suppress(OSError):  # a cache that we may only read
            os.utime(source / ENTRY)
        return found

    def keep(self, key: Key, files: Mapping[str, Path], result: Mapping[str, Any]) -> bool:
        """Store the files under `key` and make room; False, with a warning, where the disk does not let us."""
        size = sum(path.stat().st_size for path in files.values())
        if size > self.max_bytes:
            log.warning("cache %s: %d bytes are more than it may hold", self.root, size)
            return False
        try:
            self._write(key, files, result)
            self.prune()
        except (OSError, UsageError) as error:  # the engine itself is safe
            log.warning("cache %s does not keep the engine: %s", self.root, error)
            return False
        return True

    def _write(self, key: Key, files: Mapping[str, Path], result: Mapping[str, Any]) -> None:
        target = self._folder(key.digest)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.parent.mkdir(exist_ok=True)
        with partial_folder(self.root, key.digest) as stage:
            records = {}
            for name, path in files.items():
                digest = _copied(path, stage / name)
                assert digest is not None
                records[name] = FileRecord(bytes=path.stat().st_size, sha256=digest)
            record = EntryRecord(parts=dict(key.parts), files=records, result=dict(result))
            (stage / ENTRY).write_text(record.model_dump_json(indent=1), encoding="utf-8")
            try:
                stage.rename(target)
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                log.debug("cache %s: another process stored %s first", self.root, key.digest)

    def entries(self) -> tuple[Entry, ...]:
        """Everything it holds, the latest used first."""
        found = []
        with contextlib.suppress(OSError):
            for folder in self.root.joinpath("engines").iterdir():
                with contextlib.suppress(OSError):  # removed meanwhile
                    sizes = [p.stat().st_size for p in folder.iterdir()]
                    used = (folder / ENTRY if (folder / ENTRY).exists() else folder).stat().st_mtime
                    found.append(Entry(folder.name, folder, _read(folder), sum(sizes), used))
        return tuple(sorted(found, key=lambda entry: -entry.last_used))

    def prune(self, max_bytes: int | None = None) -> tuple[Entry, ...]:
        """Remove what cannot be read, what dead processes left, and the least used until the rest fits; returns entries."""
        sweep(self.root)
        left = self.max_bytes if max_bytes is None else max_bytes
        removed = []
        for entry in self.entries():
            if entry.record is not None and entry.bytes <= left:
                left -= entry.bytes
                continue
            if entry.record is not None:
                left = 0  # older ones go too, even if they would fit
            self._remove(entry.folder)
            removed.append(entry)
        return tuple(removed)

    def verify(self) -> tuple[tuple[Entry, str], ...]:
        """Read every file of every entry; remove the entries that do not match and return them, each with what is wrong."""
        damaged = []
        for entry in self.entries():
            if fault := _fault(entry):
                self._remove(entry.folder)
                damaged.append((entry, fault))
        return tuple(damaged)

    def _folder(self, digest: str) -> Path:
        return self.root / "engines" / digest

    def _remove(self, folder: Path) -> None:
        """Take an entry out of sight by a rename, then delete it."""
        with contextlib.suppress(OSError), partial_folder(self.root, "removed") as bin_:
            folder.rename(bin_ / folder.name)


def _read(folder: Path) -> EntryRecord | None:
    try:
        record = EntryRecord.model_validate_json((folder / ENTRY).read_bytes())
    except (OSError, ValidationError):
        return None
    return record if all(Path(name).name == name for name in record.files) else None


def _fault(entry: Entry) -> str | None:
    if entry.record is None:
        return f"{ENTRY} cannot be read"
    if Key(entry.record.parts).digest != entry.digest:
        return "its parts are not those of its name"
    for name, expected in entry.record.files.items():
        try:
            with (entry.folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            return f"{name}: {error.strerror}"
        if found != expected.sha256:
            return f"{name} is not what was stored"
    return None


def _copied(source: Path, target: Path) -> str | None:
    """Copy a file; its hex SHA-256, None when it cannot be read. UsageError when `target` cannot be written."""
    digest = hashlib.sha256()
    try:
        with source.open("rb") as reading:
            try:
                with target.open("wb") as writing:
                    while chunk := reading.read(CHUNK):
                        digest.update(chunk)
                        writing.write(chunk)
            except OSError as error:
                raise UsageError(
                    f"write {target}",
                    found=f"cannot write there: {error.strerror}",
                    fix="Make room",
                ) from None
    except OSError:
        return None
    return digest.hexdigest()
