"""Module -> raw ONNX graph: traced once with symbolic sizes; a module without numbers (meta device) needs none.

    torch.export (symbolic shapes, no specialisation allowed) -> torch.onnx at OPSET, not optimised -> onnx_ir.Model

The graph that comes out has named axes, initializers named as the module's parameters, and no weights. What
torch writes beyond that (constants, shape arithmetic, metadata) is for the passes.
"""

import contextlib
import copy
import inspect
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import nn
from torch._dynamo.exc import UserError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.onnx._internal.exporter import _flags

from ..core.errors import UsageError
from .axes import Input, axis_positions, named_axes, trace_sizes

OPSET = 24  # Swish, RMSNormalization, RotaryEmbedding, Attention; TensorRT-RTX 1.7 parses it
_TALKATIVE = (
    "torch.onnx._internal.exporter._registration",
    "torch.fx.experimental.symbolic_shapes",
)


@dataclass(frozen=True, slots=True)
class Captured:
    """The raw graph, and the tensors of a module that has numbers, by initializer name (empty on meta)."""

    model: ir.Model
    tensors: dict[str, torch.Tensor]


def capture(module: nn.Module, inputs: Sequence[Input], outputs: Sequence[str]) -> Captured:
    """Trace `module` with the examples of `inputs` at sizes that trace_sizes chooses.

    Raises UsageError naming input, axis and reason when a dynamic axis turns out to be fixed or bound to
    another, and UsageError with torch's words when the module cannot be traced or has no ONNX form.
    """
    axes = named_axes(inputs)
    dims = {a.name: torch.export.Dim(a.name, min=a.min, max=a.max) for a in axes.values()}
    shapes = tuple({p: dims[a.name] for p, a in i.axes.items()} for i in inputs)
    sizes = trace_sizes(inputs)
    generator = torch.Generator().manual_seed(0)
    examples = tuple(i.sample(sizes, generator) for i in inputs)
    on_meta = any(t.is_meta for t in _tensors(module))
    with _quiet(), FakeTensorMode() if on_meta else contextlib.nullcontext() as mode:
        if mode is not None:
            module, examples = _as_fake(module), tuple(mode.from_tensor(e) for e in examples)
        try:
            program = _exported(module, examples, shapes)
        except UserError as error:
            raise _constraint(error, module, inputs) from error
        except Exception as error:  # whatever the user's code raises when it is traced
            raise _untraceable(module, error, sizes) from error
        try:
            onnx_program = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                opset_version=OPSET,
                input_names=[i.name for i in inputs],
                output_names=list(outputs),
                verbose=False,
            )
        except Exception as error:  # torch wraps an operator without an ONNX form in several kinds
            raise _untraceable(module, error, sizes) from error
    assert onnx_program is not None
    model = onnx_program.model
    if len(model.graph.outputs) != len(outputs):
        raise UsageError(
            f"export of {type(module).__name__} with outputs {', '.join(outputs)}",
            found=f"it returns {len(model.graph.outputs)} tensors",
            fix="Name each of them",
        )
    _name_axes(model, inputs)
    tensors = {} if on_meta else _take_tensors(model)
    for value in model.graph.initializers.values():
        value.const_value = None
    return Captured(model, tensors)


@_flags.set_onnx_exporting_flag  # makes torch.onnx.is_in_onnx_export() true, as torch.onnx.export itself does
def _exported(
    module: nn.Module,
    examples: tuple[torch.Tensor, ...],
    shapes: tuple[dict[int, torch.export.Dim], ...],
) -> torch.export.ExportedProgram:
    """torch.export itself, not through torch.onnx: that makes an axis static rather than fail.

    Guards that no range can express are deferred: without, a mask of exactly the longest length is refused
    (`size != 16`). Verification at other sizes finds what a deferred guard would have caught.
    """
    return torch.export.export(
        module,
        examples,
        dynamic_shapes=shapes,
        strict=False,
        prefer_deferred_runtime_asserts_over_guards=True,
    )


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _as_fake(module: nn.Module) -> nn.Module:
    """A copy whose tensors are fake ones on the CPU, tied ones still tied; call under a FakeTensorMode."""
    memo: dict[int, object] = {}
    for tensor in _tensors(module):
        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(fake, requires_grad=False) if parameter else fake
    return copy.deepcopy(module, memo)


def _take_tensors(model: ir.Model) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, value in model.graph.initializers.items():
        raw = getattr(value.const_value, "raw", None)
        assert isinstance(raw, torch.Tensor), f"initializer {name} is not a torch tensor"
        tensors[name] = raw.detach()
    return tensors


def _name_axes(model: ir.Model, inputs: Sequence[Input]) -> None:
    """Rename torch's symbols (s27) after the axes; UsageError for a dynamic axis that is static in the graph."""
    names: dict[str, str] = {}
    for value, entry in zip(model.graph.inputs, inputs, strict=True):
        assert value.shape is not None
        for position, axis in entry.axes.items():
            dim = value.shape[position]
            if isinstance(dim, int):
                raise UsageError(
                    f"axis {axis.name!r} of input {entry.name!r} (axis {position})",
                    found=f"the module fixes it to {dim}",
                    fix="Leave it out of the dynamic axes, or compute with x.shape instead of a number",
                )
            names[str(dim.value)] = axis.name
    symbols = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b") if names else None

    def renamed(dim: int | ir.SymbolicDim) -> int | str | None:
        if isinstance(dim, int) or dim.value is None or symbols is None:
            return dim if isinstance(dim, int) else dim.value
        return symbols.sub(lambda match: names[match[0]], str(dim.value))

    for value in ir.convenience.create_value_mapping(model.graph).values():
        if value.shape is not None:
            value.shape = ir.Shape([renamed(d) for d in value.shape])


def _constraint(error: UserError, module: nn.Module, inputs: Sequence[Input]) -> UsageError:
    """torch's constraint report in the caller's terms: axis names for `L['x'].size()[1]`, Axis for Dim."""
    report, _, suggested = str(error).partition("Suggested fixes:\n")
    reasons = [line[4:].rstrip(".") for line in report.splitlines() if line.startswith("  - ")]
    words = "; ".join(reasons) or report.partition("\n")[0]
    words = re.sub(r"\w+ = (L\['\w+'\]\.size\(\)\[\d+\])", r"\1", words)
    for argument, entry in zip(inspect.signature(module.forward).parameters, inputs, strict=False):
        for position, axis in entry.axes.items():
            words = words.replace(f"L['{argument}'].size()[{position}]", axis.name)
    blamed = re.search(r"Constraints violated \(([^)]*)\)", report)
    names = blamed[1].split(", ") if blamed else list(named_axes(inputs))
    where = "; ".join(f"{n!r} ({places})" for n in names if (places := axis_positions(inputs, n)))
    if fixed := re.search(r"guard (\d+) <= (\w+) and \2 <= \1\b", words):
        words = f"the module computes with {fixed[2]} as the number {fixed[1]}"
        suggested = ""
    fixes = ", ".join(suggested.partition("\n\n")[0].split("\n  ")).strip().replace("Dim(", "Axis(")
    return UsageError(
        f"dynamic axis {where}",
        found=words,
        fix=f"What the module can do: {fixes}"
        if fixes
        else "Compute with x.shape, not with a number",
    )


def _untraceable(module: nn.Module, error: Exception, sizes: dict[str, int]) -> UsageError:
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    words = " ".join(str(root).split())
    at = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return UsageError(
        f"export of {type(module).__name__}" + (f" at {at}" if at else ""),
        found=f"{type(root).__name__}: {words[:200]}",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch says of absent packages and its own deprecations, and the traces it prints on failure."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in _TALKATIVE}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
