"""What `diff` is given, opened: an ONNX file, a bundle, its PyTorch reference, or saved values.

model.onnx            the typed evaluator over that graph
BUNDLE[:precision]    the bundle's graph in that precision (the first if none is named)
BUNDLE:precision@target, or a .plan in a bundle    an engine, on its own GPU
*.npz *.safetensors   saved values by name
*.json                Polygraphy's RunResults or inputs (against another file every set, else the first)
"""

from pathlib import Path

import torch

from ...core.bundle import MANIFEST, Bundle
from ...core.errors import UsageError
from ...engines.target import DEVICES
from ...graph.io import load_model
from ..golden import read_golden
from ..runners import tensor_from_numpy
from ..tensor_files import FORMATS, load_tensors
from .plan_side import PLANS, PlanSide, bundle_plan, plan_file
from .sides import Feeds, GraphSide, SavedSide


def open_graph(path: Path) -> GraphSide:
    """An ONNX file as a side."""
    return GraphSide(str(path), load_model(path))


def open_bundle(path: Path, precision: str | None) -> GraphSide:
    """A bundle's graph as a side, with the bundle's golden inputs."""
    bundle = Bundle.open(path)
    variant = bundle.manifest.variant(precision)
    model = load_model(bundle.file(variant.model))
    return GraphSide(f"{path}:{variant.precision}", model, golden_inputs(bundle))


def golden_inputs(bundle: Bundle) -> dict[str, Feeds]:
    """Whole inputs of the bundle's golden cases, by case; empty where it has none."""
    if bundle.manifest.golden is None:
        return {}
    return {case.name: case.inputs for case in read_golden(bundle.file(bundle.manifest.golden))}


def open_source(text: str) -> GraphSide | PlanSide | SavedSide:
    """The side that `text` names; a recipe or a bundle's reference needs the pipeline, see the command line.

    Raises UsageError where nothing of that name is known, UnavailableError for an engine that does not run here, and
    what reading raises.
    """
    folder, _, engine = text.rpartition("@")
    if engine.partition(":")[0] in DEVICES and not Path(text).exists():
        return _open_engine(folder, engine)
    path, precision = Path(text), None
    if not path.exists() and ":" in text:
        before, _, after = text.rpartition(":")
        if Path(before).exists():
            path, precision = Path(before), after
    if path.suffix in PLANS:
        bundle, named, target = plan_file(path)
        return bundle_plan(bundle, named, target, golden_inputs(bundle))
    if path.suffix in FORMATS:
        first, *later = _sets(path)
        return SavedSide(text, first, later=tuple(later))
    if path.is_dir() and (path / MANIFEST).is_file():
        return open_bundle(path, precision)
    if path.suffix == ".onnx":
        return open_graph(path)
    found = "a folder that is no bundle" if path.is_dir() else "no such file"
    raise UsageError(
        f"compare {text}",
        found="a file of unknown kind" if path.is_file() else found,
        fix="Name an .onnx file, a bundle[:precision, :reference or :precision@target], a recipe, or saved values (.npz, .safetensors, .json)",
    )


def _open_engine(text: str, target: str) -> PlanSide:
    """BUNDLE or BUNDLE:precision, and the target."""
    path, _, precision = text.rpartition(":") if not Path(text).exists() else (text, "", "")
    if not (Path(path) / MANIFEST).is_file():
        raise UsageError(
            f"engine {text}@{target}",
            found=f"{path or text} is no bundle",
            fix="Name it as BUNDLE:PRECISION@TARGET",
        )
    bundle = Bundle.open(path)
    return bundle_plan(bundle, precision, target, golden_inputs(bundle))


def saved_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The first set of tensors at `path`, by name; raises what validate.tensor_files raises."""
    return _sets(path)[0]


def _sets(path: Path) -> list[dict[str, torch.Tensor]]:
    return [
        {name: tensor_from_numpy(array) for name, array in arrays.items()}
        for arrays in load_tensors(path)
    ]
