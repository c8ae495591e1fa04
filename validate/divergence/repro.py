"""The smallest graph that shows a divergence, with its inputs: three files that need nothing else.

repro.onnx           the nodes between the value and the compared values before it, weights inside
repro.safetensors    its inputs, and what the other side gives
README.md            what is wrong, and the line that shows it
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
from safetensors.torch import save_file

from ...core.errors import UsageError
from ...graph.io import save_model
from ...graph.values import data_type_of
from .record import Divergence
from .regions import region_model
from .walk import Evidence

GRAPH, NUMBERS, NOTE = "repro.onnx", "repro.safetensors", "README.md"


def write_repro(
    evidence: Evidence, model: ir.Model, first: Divergence, folder: Path, *, candidate: bool
) -> str:
    """Write the files into `folder` (new, empty, or with an earlier repro) and return the command that shows it.

    candidate: whether the graph is the one under judgement; else it says what the saved value should be. Raises
    UsageError where the folder cannot be written.
    """
    small = region_model(evidence.region, model)
    given = evidence.forced.rounded(evidence.given)
    for value in small.graph.inputs:
        tensor = given[str(value.name)]
        _declare(value, data_type_of(tensor), tensor.shape)
    (out,) = small.graph.outputs
    other = evidence.expected if candidate else evidence.actual
    _declare(out, out.dtype or evidence.forced.types.get(str(out.name)), evidence.expected.shape)
    for value in small.graph.initializers.values():
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    name = next(iter(small.graph.outputs)).name or ""
    pair = (NUMBERS, GRAPH) if candidate else (GRAPH, NUMBERS)
    command = f"blockforge diff {pair[0]} {pair[1]}"
    tensors = {n: t.contiguous().clone() for n, t in given.items()} | {
        name: other.contiguous().clone()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".repro.", dir=folder) as staging:
            made = Path(staging)
            save_model(small, made / GRAPH, inline_limit=1 << 31)
            onnx.checker.check_model(str(made / GRAPH))
            save_file(tensors, made / NUMBERS)
            (made / NOTE).write_text(_note(first, command), encoding="utf-8")
            for file in made.iterdir():
                file.chmod(0o644)
                file.replace(folder / file.name)
    except OSError as error:
        raise UsageError(
            f"output {folder}",
            found=f"cannot write there: {error.strerror}",
            fix="Name a folder you may write",
        ) from None
    return command


def _declare(value: ir.Value, dtype: ir.DataType | None, shape: Sequence[int]) -> None:
    value.shape = ir.Shape(shape)
    if dtype is not None:
        value.dtype = dtype


def _note(first: Divergence, command: str) -> str:
    error = first.error
    return (
        f"# {first.op_type} {first.node}\n\n{first.cause.kind}: {first.cause.text}.\n\n"
        f"Value `{first.value}`: relative error {error.relative:.3g}, {error.over:.3g} times what rounding explains.\n\n"
        f"```\n{command}\n```\n"
    )
