"""RMSNorm and LayerNorm, whatever their spelling: proof of each condition, then the largest root that holds.

    x / sqrt(mean(x^2) + eps) [* w]                    -> RMSNorm
    (x - mean(x)) / sqrt(var(x) + eps) [* w] [+ b]     -> LayerNorm

Shapes: statistics over `axes` of x; w and b lie along exactly those axes.
"""

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction

import onnx_ir as ir

from ..algebra.facts import TRANSPARENT, Facts
from ..algebra.products import close
from ..algebra.symbols import Dims
from .match import Match, Refusal, escaping, node_name, region
from .moments import HALF, Form, moments
from .norm_operators import Norm, standard_norm
from .norm_tensor import normalised_tensor
from .statistics import Join, centre_of, is_mean, joins

ONE = Fraction(1)


def find_norms(facts: Facts) -> Iterator[Match | Refusal]:
    """Every normalisation of the graph, and every near match with its reason."""
    for moment in moments(facts):
        for join in joins(facts, moment):
            pattern = (
                "ln"
                if join.centred_by is not None or centre_of(facts, join.moment) is not None
                else "rms"
            )
            found = _prove(facts, join, pattern)
            if isinstance(found, str):
                yield Refusal(pattern, found, node_name(join.node))
            elif found is not None:
                yield _match(facts, found, pattern)


def _reading(form: Form) -> tuple[float, float, str] | None:
    """(scale, epsilon, placement) when the form is a reciprocal root of the mean of squares."""
    inner, bound, kind = form.inner, form.bound, form.kind
    if kind == "statistic":
        return (form.scale, 0.0, "inside") if form.power == -HALF else None
    assert inner is not None
    if inner.kind == "floor" and inner.bound <= 0 and inner.inner is not None:
        inner = inner.inner  # a variance is not negative anyway
    if (
        inner.kind != "statistic"
        or inner.scale <= 0
        or (inner.power, form.power) not in ((ONE, -HALF), (HALF, -ONE))
    ):
        return None
    scale = form.scale * inner.scale ** float(form.power)
    place = "floor" if kind == "floor" else "inside" if inner.power == 1 else "outside"
    return (
        scale,
        bound / inner.scale,
        place + (" outside" if kind == "floor" and inner.power == HALF else ""),
    )


def _of_another_power(form: Form) -> bool:
    """Whether an epsilon was added to the statistic and the sum then raised to a power that no norm has."""
    inner = form.inner
    plain = (
        form.kind == "plus" and inner is not None and inner.kind == "statistic" and inner.power == 1
    )
    return plain and form.power not in (-HALF, HALF, ONE)


def _prove(facts: Facts, join: Join, pattern: str) -> Norm | str | None:
    """The norm at `join`; a reason when it is nearly one; None when it is something else."""
    moment = join.moment
    reading = _reading(join.form)
    if reading is None:
        if _of_another_power(join.form) and not join.fault:
            return f"it is multiplied by the power {float(join.form.power):g} of the mean of squares, not -1/2"
        powers = {join.form.power, join.form.inner.power if join.form.inner else join.form.power}
        return (
            "the form of the root is not a norm's" if -HALF in powers and not join.fault else None
        )
    if join.fault:
        return join.fault
    scale, epsilon, placement = reading
    if epsilon < 0:
        return f"the epsilon {epsilon:g} is negative"
    base_dims, statistic_dims = facts.dims(moment.base), facts.dims(join.statistic)
    other_dims = facts.dims(join.other)
    if base_dims is None or statistic_dims is None or other_dims is None:
        return "the sizes are not known"
    expected = tuple(1 if i in moment.axes else d for i, d in enumerate(base_dims))
    if statistic_dims not in (expected, base_dims, other_dims) or len(other_dims) != len(base_dims):
        return f"the statistic has sizes {_text(statistic_dims)}, the tensor {_text(base_dims)}"
    found = normalised_tensor(facts, join)
    if isinstance(found, str):
        return found
    output = found.output or join.node.outputs[0]
    scale *= found.scale
    norm = Norm(
        found.centred,
        found.x,
        moment.axes,
        found.dims or base_dims,
        epsilon,
        placement,
        False,
        join,
        output,
        output,
    )
    norm.partial = found.dims is not None
    return _with_weight(facts, norm, found.weight, scale, pattern)


def _with_weight(
    facts: Facts, norm: Norm, first: ir.Value | None, scale: float, pattern: str
) -> Norm | str:
    if first is not None:
        cover = coverage(facts, first, norm)
        if cover != "exact":
            return _weight_fault(facts, first, norm, cover)
        norm.weight, norm.weight_first = first, True
    number = norm.root
    while True:  # what follows as long as nothing else reads it
        users = facts.users(number)
        if len(users) != 1 or number in facts.outputs or users[0].domain:
            break
        node = users[0]
        if node.op_type in TRANSPARENT and facts.peel(node.outputs[0]) is not node.outputs[0]:
            number = node.outputs[0]
            continue
        other = node.inputs[1 if node.inputs[0] is number else 0] if len(node.inputs) == 2 else None
        if other is None or other is number or node.op_type not in ("Mul", "Add", "Div"):
            break
        constant = facts.scalar(other)
        if (
            constant is not None
            and node.op_type in ("Mul", "Div")
            and not close(scale, 1, facts.dtype(number))
        ):
            if node.op_type == "Div" and (node.inputs[0] is not number or not constant):
                break
            scale = scale * constant if node.op_type == "Mul" else scale / constant
            number = norm.root = node.outputs[0]
            if norm.weight is None:
                norm.unweighted = number
            continue
        if constant is not None or facts.dims(other) is None:
            break
        cover = coverage(facts, other, norm)
        if node.op_type == "Mul" and norm.weight is None and norm.bias is None:
            if cover == "exact":
                norm.weight = other
            elif cover in ("elsewhere", "part"):
                return _weight_fault(facts, other, norm, cover)
            else:
                break
        elif node.op_type == "Add" and norm.centred and norm.bias is None and cover == "exact":
            norm.bias = other
        else:
            break
        number = norm.root = node.outputs[0]
    unbiased = _bessel(norm)
    if (
        norm.centred
        and close(scale, unbiased, facts.dtype(norm.root))
        and not close(scale, 1, facts.dtype(norm.root))
    ):
        norm.placement += " unbiased"
    elif not close(scale, 1, facts.dtype(norm.root)):
        return f"the result is scaled by {scale:.6g}: a norm over a sum, not a mean, or an unknown factor"
    norm.exact = close(scale, 1, None)
    last = len(norm.dims) - len(norm.axes)
    if norm.weight is None and norm.axes != tuple(range(last, len(norm.dims))):
        return f"the mean runs over axis {', '.join(map(str, norm.axes))}, not the last of {len(norm.dims)}"
    return norm


def _bessel(norm: Norm) -> float:
    """What a standard deviation over n - 1 makes of the scale: sqrt((n - 1) / n)."""
    sizes = [norm.dims[a] for a in norm.axes]
    count = math.prod(d for d in sizes if isinstance(d, int))
    return math.sqrt((count - 1) / count) if count > 1 else 1.0


def coverage(facts: Facts, value: ir.Value, norm: Norm) -> str:
    """How a weight lies on the tensor: exact, part (of the axes), more, elsewhere, or data (not a weight)."""
    dims = facts.dims(value)
    rank = len(norm.dims)
    if dims is None or len(dims) > rank:
        return "data"
    padded = (1,) * (rank - len(dims)) + dims
    spread = {i for i, d in enumerate(padded) if d != 1}
    axes = {a for a in norm.axes if norm.dims[a] != 1}
    if any(padded[i] != norm.dims[i] for i in spread) or not (
        facts.constant(value) or spread <= axes
    ):
        return "data"
    if spread == axes:
        return "exact"
    if spread < axes:
        return "part" if spread else "data"
    return "more" if spread > axes else "elsewhere"


def _weight_fault(facts: Facts, weight: ir.Value, norm: Norm, cover: str) -> str:
    dims = facts.dims(weight)
    where = f"the weight {weight.name} {_text(dims or ())} lies along"
    axes = ", ".join(map(str, norm.axes))
    part = "only a part of the axes" if cover == "part" else "other axes than"
    return f"{where} {part} of the mean (axis {axes} of {_text(norm.dims)})"


def _text(dims: Dims) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


def _match(facts: Facts, norm: Norm, pattern: str) -> Match | Refusal:
    leaves = {norm.x, *(v for v in (norm.weight, norm.bias) if v is not None)}
    where = node_name(norm.root.producer())
    found = region(facts, [norm.root], leaves)
    if isinstance(found, ir.Value):
        # squares taken from another copy of x (a cast of its own): start from what both copies share
        shared = facts.peel(norm.x)
        found = region(facts, [norm.root], {*leaves, shared})
        if isinstance(found, ir.Value):
            return Refusal(pattern, f"it also depends on {found.name}", where)
        leaves = (
            {*(leaves - {norm.x}), shared} if norm.x.producer() in found[0] else leaves | {shared}
        )
    nodes, sizes = found
    outputs = [norm.root]
    escaped = [v for v in escaping(facts, nodes, outputs) if facts.key(v) != facts.key(norm.x)]
    extra = [
        v
        for v in escaped
        if v in norm.join.roots or (norm.centred and is_mean(facts, v, norm.x, norm.axes))
    ]
    culprits = [v for v in escaped if v not in extra or not _before(facts, leaves, v)]
    if culprits:
        outside = "a graph output" if culprits[0] in facts.outputs else "used elsewhere"
        return Refusal(pattern, f"the inner value {culprits[0].name} is {outside}", where)
    outputs += extra  # the root and the mean are results of the operator too
    inputs = [v for v in (norm.x, norm.weight, norm.bias) if v is not None and v in leaves]
    inputs += [v for v in (*leaves, *sizes) if v not in inputs]
    base = "LayerNorm" if norm.centred else "RMSNorm"
    last = norm.axes == tuple(range(len(norm.dims) - len(norm.axes), len(norm.dims)))
    parts = {"inside": "", "outside": "EpsilonOutside"}.get(norm.placement.split()[0], "Floor")
    parts += ("Unbiased" if norm.placement.endswith("unbiased") else "") + (
        "Partial" if norm.partial else ""
    )
    parts += ("" if last else "OtherAxes") + ("WithRoot" if extra else "")
    name = base + (parts or "AsWritten")
    standard = (
        None
        if extra or norm.placement != "inside" or norm.partial or not norm.exact
        else standard_norm(facts, norm)
    )
    match = Match(pattern, name, outputs, inputs, nodes, standard, list(norm.notes))
    match.details = {"epsilon": norm.epsilon, "axes": list(norm.axes), "placement": norm.placement}
    return match


def _before(facts: Facts, leaves: Iterable[ir.Value], value: ir.Value) -> bool:
    """Whether every leaf is there before `value`, so that nothing read from `value` can feed the match."""
    made = value.producer()
    assert made is not None
    producers = [v.producer() for v in leaves if not facts.constant(v)]
    return all(p is None or facts.order[p] < facts.order[made] for p in producers)
