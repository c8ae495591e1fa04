"""Symbolic sizes: integer polynomials in named axes, equal exactly when they are the same polynomial.

batch * 4 * sequence / (4 * batch) -> sequence
"""

from collections.abc import Iterable
from dataclasses import dataclass

Monomial = tuple[str, ...]  # sorted names; the empty one is the constant


@dataclass(frozen=True, slots=True)
class Sym:
    """A polynomial with at least one name in it; a plain number is an `int`."""

    terms: tuple[tuple[Monomial, int], ...]  # sorted by monomial, no zero

    def __str__(self) -> str:
        return " + ".join(
            "*".join((*(() if c == 1 and m else (str(c),)), *m)) for m, c in self.terms
        )


Dim = int | Sym
Dims = tuple[Dim, ...]


def named(name: str) -> Sym:
    """The axis called `name`."""
    return Sym((((name,), 1),))


def _terms(dim: Dim) -> dict[Monomial, int]:
    if isinstance(dim, Sym):
        return dict(dim.terms)
    return {(): dim} if dim else {}


def _build(terms: dict[Monomial, int]) -> Dim:
    kept = tuple(sorted((m, c) for m, c in terms.items() if c))
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    return Sym(kept)


def add(a: Dim, b: Dim) -> Dim:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    terms = _terms(a)
    for monomial, count in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + count
    return _build(terms)


def multiply(a: Dim, b: Dim) -> Dim:
    """a * b."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    terms: dict[Monomial, int] = {}
    for m, c in _terms(a).items():
        for n, d in _terms(b).items():
            key = tuple(sorted((*m, *n)))
            terms[key] = terms.get(key, 0) + c * d
    return _build(terms)


def subtract(a: Dim, b: Dim) -> Dim:
    """a - b."""
    return add(a, multiply(b, -1))


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements of a tensor with these sizes."""
    total: Dim = 1
    for dim in dims:
        total = multiply(total, dim)
    return total


def divide(a: Dim, b: Dim) -> Dim | None:
    """a / b where it is exact for every size, None where that cannot be shown."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a == b:
        return 1
    divisor = _terms(b)
    if len(divisor) != 1:
        return None
    ((names, count),) = divisor.items()
    result: dict[Monomial, int] = {}
    for monomial, coefficient in _terms(a).items():
        rest = list(monomial)
        for name in names:
            if name not in rest:
                return None
            rest.remove(name)
        if coefficient % count:
            return None
        result[tuple(rest)] = coefficient // count
    return _build(result)


def floor_divide(a: Dim, b: Dim) -> Dim:
    """a // b; a quotient that is not exact becomes a name of its own."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return a // b
    exact = divide(a, b)
    return exact if exact is not None else named(f"({a})//({b})")
