"""Einsum equations with every axis named: ellipses written out, the result stated.

"...qd,...kd->...qk" of ranks 4 and 4 -> ["ABqd", "ABkd"], "ABqk"
"""

import string
from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir


def einsum_terms(node: ir.Node, ranks: Sequence[int | None]) -> tuple[list[str], str] | None:
    """(a term for each operand, the result's term), one letter an axis; None for a diagonal or an equation that does not fit."""
    equation = (node.attributes.get_string("equation", "") or "").replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None
    spare = [c for c in string.ascii_uppercase if c not in equation]
    extra = []
    for term, rank in zip(terms, ranks, strict=True):
        letters = len(term.replace("...", ""))
        if "..." in term and (rank is None or rank < letters):
            return None
        extra.append((rank or 0) - letters if "..." in term else 0)
    most = max(extra, default=0)
    if most > len(spare):
        return None
    names = "".join(spare[:most])
    written = [t.replace("...", names[most - n :]) for t, n in zip(terms, extra, strict=True)]
    if arrow:
        result = out.replace("...", names)
    else:
        counts = Counter("".join(terms).replace(".", ""))
        result = (names if any("..." in t for t in terms) else "") + "".join(
            sorted(c for c, n in counts.items() if n == 1)
        )
    fits = all(r is None or len(t) == r for t, r in zip(written, ranks, strict=True))
    if not fits or any(len(set(t)) != len(t) for t in (*written, result)):
        return None
    return written, result
