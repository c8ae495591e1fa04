"""Write a bundle into a Triton model repository: whole or not at all, other versions of the model kept.

<repository>/<name>/config.pbtxt
                    warmup/00-case.input_ids
                    1/model.onnx, model.onnx.data    or    1/model.plan
"""

import contextlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...core.bundle import MANIFEST, Bundle
from ...core.errors import ArtefactError, UsageError
from ...core.manifest import EngineRecord, VariantRecord
from ...core.partial import partial_folder
from ...core.replacing import recover, replace_folder
from ...graph.io import read_proto
from ...graph.stored_tensors import stored_tensors
from ..onnxruntime_api import survives_rewrites
from ..target import Target
from .batching import batching_of
from .folder_swap import link_or_copy, one_at_a_time
from .golden import samples_of
from .model_name import check_name
from .preflight import engine_of
from .triton_config import TritonModel, backend_of, config_text, profiles_of, signature_text
from .triton_notes import notes_on
from .triton_warmup import warm_ups

CONFIG, WARM_UP = "config.pbtxt", "warmup"
PROFILES = re.compile(r"profile: \[ (.*) \]")
PRECISION = re.compile(r'key: "blockforge\.precision"\s+value \{\s+string_value: "([^"]*)"')
LAST_VERSION = 2**63 - 1  # Triton keeps it in an int64


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a bundle is packed.

    name: of the model, None for the bundle's; several targets get `<name>-<target>` each. max_batch: rows that Triton
    may join, None for the profiles'. instances: copies on each device. delay: microseconds that a request may wait for
    others. force: replace a version that is there.
    """

    name: str | None = None
    version: int = 1
    max_batch: int | None = None
    instances: int = 1
    delay: int = 100
    force: bool = False

    def __post_init__(self) -> None:
        for what, value, least in (
            ("version", self.version, 1),
            ("instances", self.instances, 1),
            ("delay", self.delay, 0),
        ):
            if value < least:
                raise UsageError(f"{what} {value}", found="too small", fix=f"Give {least} or more")
        if self.version > LAST_VERSION:
            raise UsageError(
                f"version {self.version}",
                found="Triton's versions are 64-bit integers",
                fix=f"Give at most {LAST_VERSION}",
            )
        if self.name is not None:
            check_name(self.name)


@dataclass(frozen=True, slots=True)
class PackedModel:
    """One model version that was written; notes say what Triton will not do with it, and why."""

    name: str
    version: int
    path: Path
    target: str
    backend: str
    max_batch: int
    warm_ups: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A model to write: its configuration, and its files by their name in the version's folder."""

    model: TritonModel
    config: str
    files: dict[str, Path]


def pack_triton(
    bundle: Bundle,
    repository: Path,
    *,
    precision: str | None = None,
    targets: Sequence[Target],
    options: PackOptions | None = None,
) -> tuple[PackedModel, ...]:
    """Write one model for each target into `repository`, which is made if need be.

    Everything that can be refused is refused before anything is written. Raises UsageError for a target, type, batch or
    name that Triton cannot have, for an engine that the bundle lacks, for a version that is there already, and for a
    repository inside a bundle; ArtefactError for a bundle that is damaged.
    """
    options = options or PackOptions()
    _check_repository(repository)
    bundle.verify()
    variant = bundle.manifest.variant(precision)
    samples = samples_of(bundle)
    plans = []
    for target in targets:
        backend_of(target)
        batching = batching_of(variant.inputs, variant.outputs, variant.profiles, options.max_batch)
        engine = engine_of(bundle, variant, target)
        model = TritonModel(
            name=_name(bundle, target, options, several=len(targets) > 1),
            variant=variant,
            target=target,
            runtime=engine.runtime if engine else _onnxruntime(bundle),
            batching=batching,
            warm_ups=warm_ups(samples, variant.inputs, batching, variant.profiles),
            instances=options.instances,
            delay=options.delay,
            rewritten=target.is_tensorrt or survives_rewrites(bundle.file(variant.model)),
        )
        plans.append(Plan(model, config_text(model), _files(bundle, variant, engine)))
    try:
        _write_all(repository, plans, options)
    except OSError as error:
        raise UsageError(
            f"repository {repository}",
            found=f"cannot write there: {error.strerror}",
            fix="Name a folder you may write, on a disk with room",
        ) from None
    return tuple(_packed(bundle, repository, plan.model, options.version) for plan in plans)


def _write_all(repository: Path, plans: Sequence[Plan], options: PackOptions) -> None:
    """Write every model beside its place, then put one after another into it."""
    repository.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_at_a_time(repository))
        stages = []
        for plan in plans:
            place = repository / plan.model.name
            recover(place, CONFIG)
            _check_place(place, plan.model, options)
            stages.append(stack.enter_context(partial_folder(repository, plan.model.name)))
            _write(stages[-1], place, plan, options.version)
        for plan, stage in zip(plans, stages, strict=True):
            replace_folder(stage, repository / plan.model.name)


def _name(bundle: Bundle, target: Target, options: PackOptions, *, several: bool) -> str:
    name = (
        options.name
        or re.sub(r"[^A-Za-z0-9_.-]+", "-", bundle.manifest.name).lstrip("-.")
        or "model"
    )
    name = f"{name}-{target.slug}" if several else name
    check_name(name)
    return name


def _check_repository(repository: Path) -> None:
    """Raise UsageError for a folder in a bundle: files that the manifest does not list would spoil it."""
    place = repository.resolve()
    for folder in (place, *place.parents):
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(manifest, dict) and {"schema_version", "variants", "files"} <= set(manifest):
            raise UsageError(
                f"repository {repository}",
                found=f"it would lie in the bundle {folder}, whose manifest lists every file",
                fix="Name a folder outside",
            )


def _onnxruntime(bundle: Bundle) -> str:
    return f"onnxruntime {bundle.manifest.tools.get('onnxruntime', '')}".strip()


def _files(bundle: Bundle, variant: VariantRecord, engine: EngineRecord | None) -> dict[str, Path]:
    """Name in the version's folder -> file of the bundle."""
    if engine is not None and engine.path is not None:
        return {"model.plan": bundle.file(engine.path)}
    model = bundle.file(variant.model)
    folder = PurePosixPath(variant.model).parent
    locations = {
        entry.value
        for _, tensor in stored_tensors(read_proto(model))
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for location in locations:
        if str(folder / location) not in bundle.manifest.files:
            raise ArtefactError(
                f"bundle {bundle.path}",
                found=f"{variant.model} keeps weights in {location}, which the manifest does not list",
                fix="Build the bundle again",
            )
    return {"model.onnx": model} | {n: bundle.file(str(folder / n)) for n in sorted(locations)}


def _check_place(place: Path, model: TritonModel, options: PackOptions) -> None:
    """Raise UsageError where the version is there already, or another model of the same name."""
    if not place.exists():
        return
    asked = f"model {model.name} in {place.parent}"
    config = place / CONFIG
    if not config.is_file():
        raise UsageError(
            asked, found=f"{place} is no model of Triton's: it has no {CONFIG}", fix="Use --name"
        )
    version = place / str(options.version)
    if version.exists() and not options.force:
        raise UsageError(
            asked,
            found=f"version {options.version} is there already",
            fix="Give another --version, or --force to replace it",
        )
    others = [p.name for p in place.iterdir() if p.name.isdigit() and p != version]
    text = config.read_text(encoding="utf-8")
    listed = _listed(sorted(others, key=int))
    if others and not text.startswith(signature_text(model)):
        raise UsageError(
            asked,
            found=f"{listed} another signature or batch limit, and one {CONFIG} serves all versions",
            fix="Give another --name, or the same --max-batch",
        )
    there = PROFILES.search(text)
    if others and there and there[1] != ", ".join(f'"{name}"' for name in profiles_of(model)):
        raise UsageError(
            asked,
            found=f"{listed} the profiles {there[1]}, this one has {len(profiles_of(model))}, and one {CONFIG} serves all "
            "versions",
            fix="Give another --name",
        )
    precision = PRECISION.search(text)
    if others and precision and precision[1] != model.variant.precision:
        raise UsageError(
            asked,
            found=f"{listed} the precision {precision[1]}, this one {model.variant.precision}, and one {CONFIG} "
            "serves all versions",
            fix="Give another --name",
        )


def _listed(versions: Sequence[str]) -> str:
    """["1", "2", "3"] -> "versions 1, 2 and 3 there have"."""
    if len(versions) < 2:
        return f"version {''.join(versions)} there has"
    return f"versions {', '.join(versions[:-1])} and {versions[-1]} there have"


def _write(stage: Path, place: Path, plan: Plan, version: int) -> None:
    """The model's folder as it shall be, in `stage`: what is new is copied, what stays is linked."""
    renewed = {CONFIG, WARM_UP, str(version)}
    if place.exists():
        for item in place.iterdir():
            if item.name in renewed:
                continue
            if item.is_dir():
                shutil.copytree(item, stage / item.name, copy_function=link_or_copy)
            else:
                link_or_copy(item, stage / item.name)
    for name, source in plan.files.items():
        target = stage / str(version) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    for warm_up in plan.model.warm_ups:
        (stage / WARM_UP).mkdir(exist_ok=True)
        for name, content in warm_up.files.items():
            (stage / WARM_UP / name).write_bytes(content)
    (stage / CONFIG).write_text(plan.config, encoding="utf-8")
    stage.chmod(0o755)


def _packed(bundle: Bundle, repository: Path, model: TritonModel, version: int) -> PackedModel:
    return PackedModel(
        model.name,
        version,
        repository / model.name,
        str(model.target),
        model.backend.name,
        model.batching.limit,
        len(model.warm_ups),
        notes_on(bundle, model),
    )
