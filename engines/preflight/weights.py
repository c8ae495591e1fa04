"""Weights: infinite or NaN numbers in 16 bits, and large weights that are stored twice.

Without `thorough` only small tensors are read, and large ones of one shape are compared by a sample; with it every
number is read, a piece at a time.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from .finding import Finding
from .scene import SMALL

D = ir.DataType
LARGE = 1 << 20  # bytes from which storing a weight twice matters
PIECE = 1 << 20  # elements read at a time
SAMPLE = 2048  # elements compared of two large weights
FLOATS = frozenset({D.FLOAT16, D.BFLOAT16, D.FLOAT, D.DOUBLE, D.FLOAT8E4M3FN, D.FLOAT8E5M2})


def weight_findings(model: ir.Model, thorough: bool) -> Iterator[Finding]:
    """What the weights' numbers show."""
    weights = [
        (str(value.name), value.const_value)
        for value in model.graph.initializers.values()
        if value.const_value is not None
    ]
    for name, tensor in weights:
        if tensor.dtype in FLOATS and (thorough or tensor.nbytes <= SMALL):
            yield from _not_finite(name, tensor)
    yield from _doubled(weights, thorough)


def _not_finite(name: str, tensor: ir.TensorProtocol) -> Iterator[Finding]:
    numbers = np.asarray(tensor.numpy()).reshape(-1)
    infinite = nans = 0
    for start in range(0, numbers.size, PIECE):
        piece = numbers[start : start + PIECE]
        piece = (
            piece if piece.dtype.kind == "f" and piece.itemsize > 1 else piece.astype(np.float32)
        )
        if np.isfinite(piece).all():
            continue
        nans += int(np.isnan(piece).sum())
        infinite += int(np.isposinf(piece).sum()) + (
            int(np.isneginf(piece).sum()) if piece.size > 1 else 0
        )
    if nans or (infinite and not _is_mask(numbers)):
        parts = [f"{n} {what}" for n, what in ((infinite, "infinite"), (nans, "NaN")) if n]
        yield Finding(
            "weight.not-finite", name, "silent", f"{' and '.join(parts)} of {numbers.size} numbers ({tensor.dtype.name})",
            "It builds, and what this weight touches becomes infinite or NaN",
            "The weights passed the range of their type: export in bf16 or fp32, or scale them down",
        )  # fmt: skip


def _is_mask(numbers: np.ndarray) -> bool:
    """Whether all is 0 or -inf: a mask, which is the business of other rules."""
    small = (
        numbers.astype(np.float32) if numbers.size <= PIECE else numbers[:PIECE].astype(np.float32)
    )
    return bool(np.all((small == 0) | np.isneginf(small)))


def _doubled(weights: list[tuple[str, ir.TensorProtocol]], thorough: bool) -> Iterator[Finding]:
    """Pairs of large weights with one content, or with one content turned."""
    groups: dict[tuple, list[tuple[str, np.ndarray]]] = defaultdict(list)
    for name, tensor in weights:
        dims = [int(d) for d in tensor.shape.numpy()]
        if tensor.nbytes < LARGE or tensor.dtype == D.STRING or tensor.dtype.bitwidth < 8:
            continue
        groups[tensor.dtype, tuple(sorted(dims))].append((name, np.asarray(tensor.numpy())))
    for group in groups.values():
        seen: dict[bytes, tuple[str, np.ndarray]] = {}
        for name, array in group:
            match = next(
                (
                    m
                    for turned in (False, True)
                    if (m := seen.get(_print(array, turned))) is not None
                ),
                None,
            )
            if match is None:
                seen[_print(array, False)] = (name, array)
                continue
            other, first = match
            turned = first.shape != array.shape or _print(first, False) != _print(array, False)
            if thorough and not _equal(first, array.T if turned else array):
                continue
            how = "the transpose of" if turned else "the same as"
            told = "" if thorough else f", by {SAMPLE} samples"
            yield Finding(
                "weight.doubled", name, "note",
                f"{array.nbytes / 2**20:.0f} MiB, {how} {other!r}{told}", "The engine holds both",
                "Let both readers use one weight, with a Transpose where it is turned",
            )  # fmt: skip


def _print(array: np.ndarray, turned: bool) -> bytes:
    """The bits of a fixed sample of elements, of the array or its transpose; with its shape."""
    view = array.T if turned and array.ndim == 2 else array
    random = np.random.default_rng(0)
    places = tuple(random.integers(0, size, SAMPLE) for size in view.shape)
    sample = view[places]
    if not (sample != sample.reshape(-1)[0]).any():
        return b"constant" + repr((view.shape, turned, id(array))).encode()
    return sample.tobytes() + repr(view.shape).encode()


def _equal(first: np.ndarray, second: np.ndarray) -> bool:
    """Bit for bit, some rows at a time."""
    rows = max(1, PIECE // max(1, first[0].size))
    kind = f"u{first.itemsize}"
    return all(
        np.array_equal(
            np.ascontiguousarray(first[i : i + rows]).view(kind), np.ascontiguousarray(second[i : i + rows]).view(kind)
        )
        for i in range(0, len(first), rows)
    )  # fmt: skip
