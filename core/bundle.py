"""The bundle on disk: a folder whose manifest knows the hash of every file, written whole or not at all.

write_bundle(dir) -> a temporary sibling folder -> sealed (hashes, manifest) -> renamed to dir
"""

import contextlib
import hashlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .errors import ArtefactError, UsageError
from .manifest import FileRecord, Manifest, manifest_from_json
from .partial import partial_folder
from .replacing import recover, replace_folder
from .signing import SIGNATURE, check_signature

MANIFEST = "manifest.json"
logger = logging.getLogger(__name__)


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Bundle:
    """An existing bundle, opened for reading."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> "Bundle":
        """Read the manifest of the bundle at `path`.

        A bundle that a killed writer had moved aside is put back first. Raises UsageError where there is no such folder,
        ArtefactError when it holds none or it does not fit this version.
        """
        path = Path(path)
        file = path / MANIFEST
        if not path.exists():
            recover(path.resolve(), MANIFEST)
        if not path.exists():
            raise UsageError(
                f"bundle {path}",
                found="no such folder",
                fix="A bundle is the folder that `blockforge build` writes",
            )
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtefactError(
                f"bundle {path}",
                found=f"cannot read {MANIFEST} ({error.__class__.__name__})",
                fix="A bundle is the folder that `blockforge build` writes",
            ) from None
        manifest = manifest_from_json(text, str(file))
        for relative in (*manifest.files, *manifest.references):
            inside(relative)
            if relative not in manifest.files:
                raise ArtefactError(
                    f"manifest {file}",
                    found=f"it names {relative} without its hash",
                    fix="The manifest was edited: build the bundle again",
                )
        return cls(path, manifest)

    def strangers(self) -> list[str]:
        """Files in the folder that the manifest does not list."""
        found = (
            p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if not p.is_dir()
        )
        own = (MANIFEST, SIGNATURE)
        return sorted(name for name in found if name not in own and name not in self.manifest.files)

    def file(self, relative: str) -> Path:
        """The path of a file that the manifest lists; ArtefactError when it would leave the folder."""
        inside(relative)
        path = self.path / relative
        if not path.is_file():
            raise ArtefactError(f"bundle {self.path}", found=f"{relative} is missing")
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise ArtefactError(
                f"bundle {self.path}", found=f"{relative} is a link that leads out of the folder"
            )
        return path

    def verify(self, trusted: Sequence[Path] = ()) -> None:
        """Compare size and SHA-256 of every file with the manifest; ArtefactError names the first that differs.

        trusted: public keys (PEM), one of which must have signed the manifest, where any are given; files that the
        manifest does not list, for which nobody vouches, are an error then.
        """
        if trusted:
            self.check_signature(trusted)
            self.check_strangers()
        for relative, record in self.manifest.files.items():
            path = self.file(relative)
            size = path.stat().st_size
            if size != record.bytes:
                raise ArtefactError(
                    f"bundle {self.path}",
                    found=f"{relative} has {size} bytes, the manifest says {record.bytes}",
                    fix="The file was changed or cut short: build the bundle again",
                )
            if sha256_of(path) != record.sha256:
                raise ArtefactError(
                    f"bundle {self.path}",
                    found=f"{relative} has another SHA-256 than the manifest says",
                    fix="The file was changed: build the bundle again",
                )

    def check_strangers(self) -> None:
        """Raise ArtefactError where the folder holds files that the manifest does not list."""
        strangers = self.strangers()
        if strangers:
            raise ArtefactError(
                f"bundle {self.path}",
                found=f"it also holds {_some(strangers)}, which the manifest does not list",
                fix="Move what is yours out of the folder, and trust nothing that is not",
            )

    def check_signature(self, trusted: Sequence[Path]) -> None:
        """Raise ArtefactError unless one of the trusted public keys signed the manifest that was opened."""
        file = self.path / MANIFEST
        content = file.read_bytes()
        check_signature(file, content, trusted)
        if manifest_from_json(content.decode(), str(file)) != self.manifest:
            raise ArtefactError(
                f"bundle {self.path}",
                found="its manifest was replaced after it was opened",
                fix="Open it again",
            )


def _some(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def inside(relative: str) -> PurePosixPath:
    """Return a bundle path that is relative and stays inside; ArtefactError otherwise."""
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in relative:
        raise ArtefactError(f"bundle path {relative!r}", found="it leaves the bundle's folder")
    return path


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Write manifest.json with the size and hash of every other file in `folder`; returns it.

    A file that `adopt` linked keeps its record: `manifest.files` holds it, and the bytes are the same.
    """
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        relative = path.relative_to(folder).as_posix()
        if relative in (MANIFEST, SIGNATURE):
            continue
        known, status = manifest.files.get(relative), path.stat()
        if known is not None and status.st_nlink > 1:
            files[relative] = known
        else:
            path.chmod(0o644)
            files[relative] = FileRecord(bytes=status.st_size, sha256=sha256_of(path))
    sealed = manifest.model_copy(update={"files": files})
    text = sealed.model_dump_json(indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return sealed


def adopt(bundle: Bundle, folder: Path) -> None:
    """Give `folder` every file of `bundle` that it does not have: a hard link, or a copy where links do not work.

    For a folder that will take the bundle's place. onnx-ir refuses weights with two links, so adopt last.
    """
    for relative in bundle.manifest.files:
        target = folder / relative
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        source = bundle.file(relative)
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copy2(source, target)


def check_destination(path: Path) -> None:
    """Raise UsageError unless a bundle may be written at `path`: free, empty, or an earlier bundle and nothing else."""
    asked, fix = f"output {path}", "Name a new folder, an empty one, or an earlier bundle"
    try:
        if not path.exists():
            return
        if not path.is_dir():
            raise UsageError(asked, found="a file", fix="Name a folder")
        if not any(path.iterdir()):
            return
        strangers = Bundle.open(path).strangers()
    except ArtefactError as error:
        raise UsageError(
            asked, found=f"a folder that is no bundle ({error.found})", fix=fix
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    if strangers:
        raise UsageError(
            asked,
            found=f"the bundle's folder also holds {_some(strangers)}, which would be lost",
            fix=fix,
        )


@contextlib.contextmanager
def write_bundle(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on a clean exit it takes the place of `path`.

    The caller seals it. An exception (Ctrl-C included) removes it and leaves `path` as it was; what a killed process
    left half-written for the same `path` is removed first, and an old bundle that it had moved aside is put back.
    Raises UsageError when `path` cannot be written or holds something that is not a bundle.
    """
    path = Path(path)
    check_destination(path)
    path = path.resolve()  # the bundle goes where a link leads
    recover(path, MANIFEST)
    made = _make_parents(path.parent)
    with contextlib.ExitStack() as stack:
        try:
            staging = stack.enter_context(partial_folder(path.parent, path.name))
        except OSError as error:
            _remove_empty(made)
            raise _unwritable(path, error) from None
        try:
            yield staging
            staging.chmod(0o755)
            signed = (path / SIGNATURE).exists()
            replace_folder(staging, path)
            if signed:
                logger.warning("%s has changed and so lost its signature: sign it again", path)
        except BaseException:
            stack.close()
            _remove_empty(made)
            raise


def _make_parents(folder: Path) -> list[Path]:
    made: list[Path] = []
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        for parent in reversed(missing):
            parent.mkdir()
            made.append(parent)
    except OSError as error:
        _remove_empty(made)
        raise _unwritable(folder, error) from None
    return made


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"output {path}",
        found=f"cannot write there: {error.strerror}",
        fix="Name a folder you may write",
    )
