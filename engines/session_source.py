"""What a session is opened on: a bundle, a lone ONNX file, or a lone plan -> what has to be loaded, its hash verified.

The first of four steps: hash, version, architecture, and only then the native code that a plan holds.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.bundle import MANIFEST, Bundle, sha256_of
from ..core.errors import ArtefactError, UsageError
from ..core.manifest import TensorRecord
from ..core.shapes import Profile
from .engine_choice import plan_of
from .layers_file import load_layers
from .target import Target

DEFAULT_TARGET = Target("onnxruntime", "cpu")
LAYERS = ".layers.json"


@dataclass(frozen=True, slots=True)
class Source:
    """What to load. model: the graph, None for a lone plan. plan: the engine's bytes as verified, None for ONNX Runtime.

    target: what to run on; the plan may be for further architectures.
    runtime: the version that built the plan, "" where nobody recorded it. options: of the build, as they were
    recorded with it. inputs, outputs: None where only the engine knows.
    """

    asked: str
    target: Target
    model: Path | None = None
    plan: bytes | None = None
    runtime: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorRecord, ...] | None = None
    outputs: tuple[TensorRecord, ...] | None = None
    profiles: tuple[Profile, ...] = ()


def open_source(
    source: Bundle | str | Path,
    *,
    precision: str | None,
    target: Target | None,
    verify: bool | str,
    trusted: Sequence[Path] = (),
) -> Source:
    """Find and verify what `source` names.

    verify: True compares every file of a bundle with its manifest, and a plan with the manifest of the bundle around it;
    a text is the SHA-256 that the named file must have; False trusts. trusted: public keys, one of which must have signed
    the bundle's manifest, where any are given. Raises UsageError for what cannot be opened or
    verified, ArtefactError for what does not match.
    """
    if trusted and verify is not True:
        raise UsageError(
            f"session of {source} by trusted keys",
            found=f"verify={verify!r}",
            fix="Leave verify on: a signature covers the hashes that it compares",
        )
    if isinstance(source, Bundle):
        return _of_bundle(source, precision, target or DEFAULT_TARGET, verify, trusted)
    path = Path(source)
    if path.suffix == ".plan":
        return _of_plan(path, target, verify, trusted)
    if path.suffix == ".onnx":
        if trusted:
            raise UsageError(
                f"session of {path} by trusted keys",
                found="a lone file, which nobody signed",
                fix="Open the bundle around it",
            )
        if isinstance(verify, str):
            _check_hash(path, sha256_of(_file(path)), verify)
        return _of_model(path, target or DEFAULT_TARGET)
    if path.is_file() and path.name != MANIFEST:
        raise UsageError(
            f"session of {path}",
            found="a file that is neither a bundle nor an .onnx file nor a .plan",
            fix="Name the folder that `blockforge build` wrote",
        )
    bundle = Bundle.open(path.parent if path.name == MANIFEST else path)
    return _of_bundle(bundle, precision, target or DEFAULT_TARGET, verify, trusted)


def _of_bundle(
    bundle: Bundle,
    precision: str | None,
    target: Target,
    verify: bool | str,
    trusted: Sequence[Path],
) -> Source:
    if isinstance(verify, str):
        raise UsageError(
            f"session of {bundle.path}",
            found="a SHA-256 for a bundle, whose manifest has one for each file",
            fix="Set verify=True",
        )
    if verify:
        bundle.verify(trusted)
    variant = bundle.manifest.variant(precision)
    plan, record = None, None
    if target.is_tensorrt:
        record = plan_of(bundle, variant, target)
        path = bundle.file(str(record.path))
        plan = path.read_bytes()
        if verify:  # the very bytes that will be loaded
            relative = path.relative_to(bundle.path).as_posix()
            found = hashlib.sha256(plan).hexdigest()
            _check_hash(path, found, bundle.manifest.files[relative].sha256)
    return Source(
        asked=f"{variant.precision} on {target} of {bundle.path}",
        target=target,
        model=bundle.file(variant.model),
        plan=plan,
        runtime=record.runtime if record else "",
        options=record.options if record else {},
        inputs=variant.inputs,
        outputs=variant.outputs,
        profiles=variant.profiles,
    )


def _of_model(path: Path, target: Target) -> Source:
    from ..graph.io import load_model
    from .signature import signature_of

    if target.is_tensorrt:
        raise UsageError(
            f"session on {target}",
            found="an ONNX file, not an engine",
            fix="Compile it and open the bundle",
        )
    inputs, outputs = signature_of(load_model(path))
    return Source(f"{target} of {path}", target, model=path, inputs=inputs, outputs=outputs)


def _of_plan(
    path: Path, target: Target | None, verify: bool | str, trusted: Sequence[Path]
) -> Source:
    asked = f"plan {path}"
    data = _file(path).read_bytes()
    if isinstance(verify, str):
        _check_hash(path, hashlib.sha256(data).hexdigest(), verify)
    elif verify:
        _check_hash(path, hashlib.sha256(data).hexdigest(), _recorded_hash(path, trusted))
    layers = path.with_name(path.name.removesuffix(".plan") + LAYERS)
    record = load_layers(layers) if layers.is_file() else None
    built_for = Target.parse(record.target) if record else None
    target = target or built_for
    if target is None:
        raise UsageError(
            asked,
            found=f"neither a target nor {layers.name} beside it",
            fix="Name the target that it was built for, e.g. tensorrt:sm90",
        )
    if not target.is_tensorrt or not (built_for is None or built_for.covers(target)):
        raise UsageError(
            f"{asked} on {target}",
            found=f"it was built for {built_for or 'TensorRT'}",
            fix="Leave target out, or name that one",
        )
    if record is None:
        return Source(asked, target, plan=data)
    return Source(asked, target, plan=data, runtime=record.runtime, options=record.options)


def _recorded_hash(path: Path, trusted: Sequence[Path]) -> str:
    """What the manifest of the bundle around a plan says of it."""
    for folder in path.absolute().parents[:3]:
        if (folder / MANIFEST).is_file():
            bundle = Bundle.open(folder)
            record = bundle.manifest.files.get(path.absolute().relative_to(folder).as_posix())
            if record is not None:
                if trusted:
                    bundle.check_signature(trusted)
                return record.sha256
    raise UsageError(
        f"plan {path}",
        found="no bundle around it whose manifest has its hash, and loading a plan runs native code from it",
        fix="Give verify='<its SHA-256>', or verify=False for a plan of your own",
    )


def _check_hash(path: Path, found: str, expected: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", expected.lower()):
        raise UsageError(
            f"verify={expected!r}", found="no SHA-256", fix="Give 64 hexadecimal digits"
        )
    if found != expected.lower():
        raise ArtefactError(
            f"file {path}",
            found=f"its SHA-256 is {found}, not {expected.lower()}",
            fix="The file was changed: get it again from where it was built",
        )


def _file(path: Path) -> Path:
    if not path.is_file():
        raise UsageError(f"session of {path}", found="no such file")
    return path
