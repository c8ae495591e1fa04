"""The feed-forward sub-layer as data: its activation, gate, biases and experts."""

from dataclasses import dataclass
from typing import Literal

from .contradiction import contradiction

FeedForwardKind = Literal[
    "relu", "gelu", "gelu_tanh", "glu", "reglu", "geglu", "geglu_tanh", "swiglu"
]


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts: a router gives each token to `num_active` of `num_experts` feed-forward sub-layers.

    score: how router logits become weights. normalise: the chosen weights are made to sum to 1; then they
    are multiplied by `scaling`. shared_size: intermediate size of an expert that serves every token, None
    for none. correction_bias: a learned number per expert that sways the choice, not the weight. Experts stand in
    `num_groups` groups, of which the `num_active_groups` with the best two experts are considered (DeepSeek-V3,
    arXiv 2412.19437).
    """

    num_experts: int
    num_active: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = False
    scaling: float = 1.0
    shared_size: int | None = None
    correction_bias: bool = False
    num_groups: int = 1
    num_active_groups: int = 1

    def check(self) -> None:
        """Raise UsageError naming the numbers that contradict each other."""
        if not 0 < self.num_active <= self.num_experts:
            raise contradiction(
                f"{self.num_active} active of {self.num_experts} experts",
                "At least one and at most all are active",
            )
        groups, active = self.num_groups, self.num_active_groups
        if not 0 < active <= groups or self.num_experts % groups:
            raise contradiction(
                f"{active} active of {groups} groups over {self.num_experts} experts",
                "Groups are equal, and at least one is active",
            )
        size = self.num_experts // groups
        if groups > 1 and (size < 2 or self.num_active > active * size):
            raise contradiction(
                f"{self.num_active} active experts from {active} groups of {size}",
                "A group has two experts or more, and the active groups have enough",
            )


@dataclass(frozen=True, slots=True)
class FeedForwardConfig:
    """The feed-forward sub-layer, of every expert where there are experts.

    kind: relu, gelu (exact) and gelu_tanh are two projections with an activation between; the others multiply
    two projections, one of them activated: glu by sigmoid, reglu by relu, geglu by gelu, swiglu by silu.
    bias: of all projections. packed: gate and up in one projection.
    """

    intermediate_size: int
    kind: FeedForwardKind = "swiglu"
    bias: bool = False
    packed: bool = False
    experts: ExpertsConfig | None = None

    @property
    def gated(self) -> bool:
        """Whether a gate multiplies."""
        return self.kind.endswith(("glu", "glu_tanh"))

    def check(self) -> None:
        """Raise UsageError naming the choices that contradict each other."""
        if self.packed and not self.gated:
            raise contradiction(f"packed {self.kind}", "Only a gated feed-forward can be packed")
        if self.experts is not None:
            self.experts.check()
            if self.bias or self.packed or not self.gated:
                raise contradiction(
                    f"experts of kind {self.kind} with bias {self.bias}, packed {self.packed}",
                    "Experts are gated, without biases, not packed",
                )
