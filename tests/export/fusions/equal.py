"""The oracle of the fusion tests: both graphs evaluated in float64 at two shapes, with large values and rows of zeros."""

import numpy as np
import onnx
import onnx_ir as ir
import torch

from blockforge.graph.evaluator import TypedEvaluator

SHAPES = ({"b": 2, "s": 5, "t": 3}, {"b": 1, "s": 1, "t": 4})


def feeds(
    model: onnx.ModelProto, sizes: dict[str, int], scale: float, seed: int
) -> dict[str, torch.Tensor]:
    """Inputs by name: normal numbers of `scale` with the first row zero; token ids and masks are integers."""
    rng = np.random.default_rng(seed)
    stored = {i.name for i in model.graph.initializer}
    made = {}
    for info in model.graph.input:
        if info.name in stored:
            continue
        kind = info.type.tensor_type
        names = {}
        for dim in kind.shape.dim:
            if dim.dim_param and dim.dim_param not in names:
                names[dim.dim_param] = sizes.get(
                    dim.dim_param,
                    (2, 5)[len(names) % 2] if sizes["b"] > 1 else 1 + 3 * (len(names) % 2),
                )
        shape = [d.dim_value or names[d.dim_param] for d in kind.shape.dim]
        if kind.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            array = np.ones(shape) if "mask" in info.name else rng.integers(0, 100, shape)
            made[info.name] = torch.from_numpy(array.astype(np.int64))
            continue
        array = rng.normal(size=shape) * scale
        array.reshape(-1, shape[-1])[0] = 0
        made[info.name] = torch.from_numpy(array)
    return made


def largest_difference(
    before: onnx.ModelProto, after: onnx.ModelProto, scales: tuple[float, ...] = (1.0, 3e4)
) -> float:
    """The largest error of any output relative to its largest element, infinite where NaN or shape differ."""
    pair = [TypedEvaluator(ir.from_proto(m), exact=True) for m in (before, after)]
    worst = 0.0
    for index, (sizes, scale) in enumerate(zip(SHAPES, scales, strict=True)):
        fed = feeds(before, sizes, scale, index)
        for name, expected in pair[0].run(fed).outputs.items():
            actual = pair[1].run(fed).outputs[name]
            same = expected.shape == actual.shape and bool(
                (torch.isnan(expected) == torch.isnan(actual)).all()
            )
            if not same or not torch.equal(torch.isinf(expected), torch.isinf(actual)):
                return float("inf")
            finite = torch.isfinite(expected)
            if finite.any():
                size = expected[finite].abs().max().item() or 1.0
                worst = max(worst, (expected - actual)[finite].abs().max().item() / size)
    return worst


def fused(model: onnx.ModelProto, options=None):
    """(model after, report) with the checker run on the result."""
    from blockforge.export.fusions import fuse

    graph = ir.from_proto(model)
    report = fuse(graph, options)
    after = ir.to_proto(graph)
    onnx.checker.check_model(after, full_check=True)
    assert [o.type.tensor_type.elem_type for o in after.graph.output] == [
        o.type.tensor_type.elem_type for o in model.graph.output
    ]
    return after, report
