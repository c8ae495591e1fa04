"""What is measured, named and checked before anything is opened: graphs of bundles, ONNX files, the PyTorch module.

BUNDLE, --precision, --target    subjects: a bundle's graphs on targets
--against                        baselines: eager, compile, a target, another bundle[:precision], an .onnx file
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ...core.bundle import MANIFEST, Bundle
from ...core.dtypes import DType, dtype_from_name
from ...core.errors import UnavailableError, UsageError
from ...core.manifest import TensorRecord, VariantRecord
from ...core.shapes import Profile
from ...engines.engine_choice import plan_of
from ...engines.requirements import check_runnable
from ...engines.target import DEVICES, Target

MODULES = ("eager", "compile")


@dataclass(frozen=True, slots=True)
class GraphSide:
    """A graph on a target. path: the ONNX file or the plan. profiles: the sizes it takes, () for any.

    cuda_graph: replay instead of launching.
    """

    label: str
    precision: str  # "" where nothing says
    path: Path
    target: Target
    inputs: tuple[TensorRecord, ...]
    profiles: tuple[Profile, ...]
    computes: DType | None  # None where nothing says
    cuda_graph: bool = False
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ModuleSide:
    """The reference module in `computes`. device: cpu or cuda."""

    label: str
    mode: Literal["eager", "compile"]
    computes: DType
    device: Literal["cpu", "cuda"]

    @property
    def precision(self) -> str:
        return self.computes.value


Side = GraphSide | ModuleSide


def subjects_of(
    bundle: Bundle, precisions: Sequence[str], targets: Sequence[str]
) -> tuple[GraphSide, ...]:
    """The graphs of `bundle` to measure, a plan twice: launched, and replayed as a CUDA graph.

    precisions: all if empty. targets: if empty, those of the bundle's engines that run here. Raises UsageError for a
    target that does not exist, ArtefactError for a precision or engine that the bundle lacks, and UnavailableError
    when a target cannot run here.
    """
    variants = [bundle.manifest.variant(p) for p in precisions] or list(bundle.manifest.variants)
    wanted = [Target.parse(target) for target in dict.fromkeys(targets)]
    for target in wanted:
        check_runnable(target)
    sides: list[GraphSide] = []
    for variant in variants:
        for target in wanted or _runnable(variant):
            sides += graph_sides(bundle, variant, target)
    if not sides:
        names = sorted({engine.target for v in variants for engine in v.engines})
        raise UnavailableError(
            f"bench {bundle.path}",
            found=f"none of its engines runs here: {', '.join(names) or 'it has none'}",
            fix="Name a target that does, e.g. --target onnxruntime:cpu",
        )
    return tuple(sides)


def left_out(bundle: Bundle, precisions: Sequence[str], targets: Sequence[str]) -> dict[str, str]:
    """The engines that `subjects_of` leaves out because they cannot run here, and why; none where targets were named."""
    found: dict[str, str] = {}
    for variant in bundle.manifest.variants:
        if targets or (precisions and variant.precision not in precisions):
            continue
        for engine in variant.engines:
            try:
                check_runnable(Target.parse(engine.target))
            except UnavailableError as error:
                found[f"{variant.precision} {engine.target}"] = error.found
    return found


def graph_sides(
    bundle: Bundle, variant: VariantRecord, target: Target, prefix: str = ""
) -> tuple[GraphSide, ...]:
    """A variant on a target, under both ways to launch it where there are two; named by the engine that serves the target."""
    relative = variant.model
    if target.is_tensorrt:
        engine = plan_of(bundle, variant, target)
        target, relative = Target.parse(engine.target), str(engine.path)
    side = GraphSide(
        label=f"{prefix}{variant.precision} {target}",
        precision=variant.precision,
        path=bundle.file(relative),
        target=target,
        inputs=variant.inputs,
        profiles=variant.profiles,
        computes=dtype_from_name(variant.computes),
        sha256=bundle.manifest.files[relative].sha256,
    )
    if not target.is_tensorrt:
        return (side,)
    return (side, replace(side, label=f"{side.label}, CUDA graph", cuda_graph=True))


def baselines_of(bundle: Bundle, subject: GraphSide, against: Sequence[str]) -> tuple[Side, ...]:
    """What `subject` is compared with; raises as subjects_of, and UsageError for a text that names nothing."""
    return tuple(_baseline(bundle, subject, text) for text in dict.fromkeys(against))


def _baseline(bundle: Bundle, subject: GraphSide, text: str) -> Side:
    if text in MODULES:
        assert subject.computes is not None
        device: Literal["cpu", "cuda"] = "cpu" if subject.target.device == "cpu" else "cuda"
        label = f"{text} {subject.computes.value}" + (" on the GPU" if device == "cuda" else "")
        mode: Literal["eager", "compile"] = "eager" if text == "eager" else "compile"
        return ModuleSide(label, mode, subject.computes, device)
    if text.partition(":")[0] in DEVICES:
        target = Target.parse(text)
        check_runnable(target)
        sides = graph_sides(bundle, bundle.manifest.variant(subject.precision), target)
        return _same_launch(sides, subject)
    path, _, named = text.rpartition(":") if not Path(text).exists() else (text, "", "")
    if Path(path).suffix == ".onnx" and Path(path).is_file():
        return _file_side(Path(path), subject)
    if not (Path(path) / MANIFEST).is_file():
        raise UsageError(
            f"bench against {text}",
            found="neither a bundle, an .onnx file nor a target",
            fix=f"Give {', '.join(MODULES)}, a target such as onnxruntime:cpu, BUNDLE[:precision] or a file",
        )
    other = Bundle.open(path)
    variant = other.manifest.variant(named or subject.precision)
    return _same_launch(graph_sides(other, variant, subject.target, f"{path}: "), subject)


def _same_launch(sides: tuple[GraphSide, ...], subject: GraphSide) -> GraphSide:
    """Of the two launches of an engine, the one that the subject has."""
    return next((s for s in sides if s.cuda_graph == subject.cuda_graph), sides[0])


def _file_side(path: Path, subject: GraphSide) -> GraphSide:
    if subject.target.is_tensorrt:
        raise UsageError(
            f"bench against {path}",
            found=f"{subject.target} runs engines, not ONNX files",
            fix="Compile it into a bundle",
        )
    from ...engines.signature import signature_of
    from ...graph.io import load_model

    inputs, _ = signature_of(load_model(path))
    return GraphSide(f"{path} {subject.target}", "", path, subject.target, inputs, (), None)


def _runnable(variant: VariantRecord) -> list[Target]:
    return [t for t in map(Target.parse, (e.target for e in variant.engines)) if _runs(t)]


def _runs(target: Target) -> bool:
    try:
        check_runnable(target)
    except UnavailableError:
        return False
    return True
