"""How far a graph's outputs lie from those of the graph that it was made from, as one number to be kept small.

kl     mean over positions of KL(softmax(reference) || softmax(candidate)) over the last axis, in nats
error  || candidate - reference || / || reference || over all outputs
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from ...core.errors import UsageError

Measure = Literal["kl", "error"]
Outputs = Mapping[str, torch.Tensor]
ROWS = 256  # positions at a time


def distance(measure: Measure, reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> float:
    """The measure over all feeds, one set of float outputs each.

    kl reads the output named `logits`, or the only one. Raises UsageError where there are several and none has that
    name.
    """
    if measure == "error":
        return _error(reference, candidate)
    name = logits_name(reference[0])
    total = positions = 0.0
    for wanted, found in zip(reference, candidate, strict=True):
        p = wanted[name].reshape(-1, wanted[name].shape[-1])
        q = found[name].reshape(p.shape)
        for start in range(0, len(p), ROWS):
            log_p = p[start : start + ROWS].float().log_softmax(-1)
            log_q = q[start : start + ROWS].float().log_softmax(-1)
            total += float((log_p.exp() * (log_p - log_q)).sum(dtype=torch.float64))
        positions += len(p)
    return total / positions


def _error(reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> float:
    lost = size = 0.0
    for wanted, found in zip(reference, candidate, strict=True):
        for name, tensor in wanted.items():
            if tensor.is_floating_point():
                lost += float((found[name].double() - tensor.double()).square().sum())
                size += float(tensor.double().square().sum())
    return (lost / size) ** 0.5 if size else 0.0


def logits_name(outputs: Outputs) -> str:
    """The output whose last axis holds next tokens: `logits`, or the only one; UsageError where that is not clear."""
    if "logits" in outputs:
        return "logits"
    if len(outputs) == 1:
        return next(iter(outputs))
    raise UsageError(
        "KL divergence of next tokens",
        found=f"several outputs, none of them called logits: {', '.join(outputs)}",
        fix="Search by error",
    )
