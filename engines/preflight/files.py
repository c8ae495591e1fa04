"""Reading a model for preflight: everything wrong with its stored tensors becomes a finding, and no weight is read."""

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from ...core.errors import ArtefactError
from ...graph.io import load_model, read_proto
from ...graph.stored_tensors import stored_tensors, tensor_fault
from .finding import Finding

SHOWN = 3  # tensors that one finding names


def load_or_findings(path: Path) -> tuple[ir.Model | None, list[Finding]]:
    """(the model, nothing), or (None, why its tensors cannot be read).

    Raises UsageError without such a file, ArtefactError for a file that is no ONNX model.
    """
    try:
        return load_model(path, allow_circles=True), []  # check_structure reports them
    except ArtefactError as error:
        faults = list(_faults(read_proto(path), path.absolute().parent))
        if not faults:
            raise error
        return None, faults


def _faults(proto: onnx.ModelProto, folder: Path) -> Iterator[Finding]:
    """One finding for each reason; a missing data file is one reason, however many weights lie in it."""
    reasons: dict[str, list[str]] = {}
    for where, tensor in stored_tensors(proto):
        if reason := tensor_fault(tensor, folder):
            reasons.setdefault(reason, []).append(tensor.name or where)
    for reason, names in reasons.items():
        external = reason.startswith(("external data", "bytes "))
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield Finding(
            "data.external" if external else "data.tensor",
            ", ".join(names[:SHOWN]) + more,
            "refused",
            reason,
            "No tool can read these weights",
            "Get the file, and its data file, again; keep both in one folder",
        )
