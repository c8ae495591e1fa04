"""What a fusion run did and did not do, countable and explainable."""

from dataclasses import dataclass, field
from typing import Literal

from .match import Refusal

PATTERNS = ("rms", "ln", "glu", "rope", "attn", "act")
Runner = Literal["standard", "blockforge", "ort"]


@dataclass(frozen=True, slots=True)
class FuseOptions:
    """What to fuse and for whom.

    ops: `standard` writes standard ONNX operators wherever one means the same, and functions of the domain
    blockforge elsewhere; `blockforge` also joins residual additions to the norms; `ort` prefers ONNX Runtime's own.
    only: the patterns to look for (all where empty). keep: patterns, or names of nodes, to leave as they are.
    pack: also join linears that read one value into one product.
    """

    ops: Runner = "standard"
    only: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    pack: bool = False

    def wants(self, pattern: str) -> bool:
        """Whether a pattern is to be fused."""
        return (not self.only or pattern in self.only) and pattern not in self.keep


@dataclass(frozen=True, slots=True)
class Fused:
    """One operator that took the place of several nodes."""

    pattern: str
    operator: str
    node: str
    replaced: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class FusionReport:
    """The outcome for one model. counts: instances per pattern in the result, those the file had already included.

    packed: weight or bias -> those that lie in it side by side, where packing was asked for.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PATTERNS, 0))
    fused: list[Fused] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    packed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    opset_before: int = 0
    opset_after: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    seconds: float = 0.0
    verified: int = 0  # shapes at which source and result were compared in float64

    def to_json(self) -> dict[str, object]:
        """Plain data: the counts at the top, then what was fused, refused, repaired and noted."""
        return {
            **self.counts,
            "fused": [
                {
                    "pattern": f.pattern,
                    "operator": f.operator,
                    "node": f.node,
                    "replaced": list(f.replaced),
                    "notes": list(f.notes),
                }
                for f in self.fused
            ],
            "refused": [
                {"pattern": r.pattern, "reason": r.reason, "node": r.node} for r in self.refused
            ],
            "repairs": list(self.repairs),
            "notes": list(self.notes),
            "packed": {name: list(parts) for name, parts in self.packed.items()},
            "opset": [self.opset_before, self.opset_after],
            "nodes": [self.nodes_before, self.nodes_after],
            "seconds": round(self.seconds, 4),
            "verified": self.verified,
        }

    def explain(self) -> str:
        """One line per fusion and per near match, for people."""
        lines = [
            f"{f.operator} replaces {len(f.replaced)} nodes at {f.node}"
            + "".join(f"\n  note: {n}" for n in f.notes)
            for f in self.fused
        ]
        lines += [f"packed {' + '.join(parts)} into {name}" for name, parts in self.packed.items()]
        lines += [f"left alone: {r}" for r in self.refused]
        return "\n".join([*self.repairs, *lines, *self.notes])
