"""Which sub-layer a parameter belongs to, where it stands and what it does there, by the name of its module.

layers.3.self_attn.q_proj.weight [out, in] -> qkv of block 3, one of the matrices that read the sub-layer's input
"""

import functools
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..config import ModelConfig
from ..skeleton import parameter_shapes


class SubLayer(Enum):
    """The rows of the account, in the order of the forward pass."""

    EMBEDDING = "embedding"
    NORM = "norm"
    QKV = "qkv"
    ROPE = "rope"
    ATTENTION = "attention"
    OUTPUT_PROJECTION = "output projection"
    FEED_FORWARD = "feed-forward"
    HEAD = "head"


class Role(Enum):
    """What a parameter does in its sub-layer."""

    TABLE = "table"  # rows are looked up, not multiplied
    SCALE = "scale"  # a norm's weight
    FIRST = "first"  # a matrix that reads the sub-layer's input, which its siblings share
    INNER = (
        "inner"  # a matrix with an input and an output of its own: second low-rank stage, router
    )
    LAST = "last"  # a matrix that writes the sub-layer's output onto the residual path
    VECTOR = "vector"  # a bias: rides along with its matrix


_KINDS: dict[str, tuple[SubLayer, Role]] = {
    "embed_tokens": (SubLayer.EMBEDDING, Role.TABLE),
    "positions": (SubLayer.EMBEDDING, Role.TABLE),
    "types": (SubLayer.EMBEDDING, Role.TABLE),
    "q_proj": (SubLayer.QKV, Role.FIRST),
    "k_proj": (SubLayer.QKV, Role.FIRST),
    "v_proj": (SubLayer.QKV, Role.FIRST),
    "qkv_proj": (SubLayer.QKV, Role.FIRST),
    "q_a_proj": (SubLayer.QKV, Role.FIRST),
    "kv_a_proj_with_mqa": (SubLayer.QKV, Role.FIRST),
    "q_b_proj": (SubLayer.QKV, Role.INNER),
    "kv_b_proj": (SubLayer.QKV, Role.INNER),
    "relative_bias": (SubLayer.ATTENTION, Role.TABLE),
    "o_proj": (SubLayer.OUTPUT_PROJECTION, Role.LAST),
    "gate": (SubLayer.FEED_FORWARD, Role.INNER),
    "gate_proj": (SubLayer.FEED_FORWARD, Role.FIRST),
    "up_proj": (SubLayer.FEED_FORWARD, Role.FIRST),
    "gate_up_proj": (SubLayer.FEED_FORWARD, Role.FIRST),
    "down_proj": (SubLayer.FEED_FORWARD, Role.LAST),
    "lm_head": (SubLayer.HEAD, Role.LAST),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where parameters stand. layer: None at the model's ends; group: which attention of the block.

    `cross` reads the decoder (queries, output), `source` the encoder (keys, values), `own` is everything else.
    """

    layer: int | None
    encoder: bool = False
    group: str = "own"

    @property
    def decodes(self) -> bool:
        """Whether it works again for each new token; the encoder's part is cached."""
        return not self.encoder and self.group != "source"


@dataclass(frozen=True, slots=True)
class Part:
    """One parameter. copies: experts in it, of which `active` serve one token (both 1 without experts)."""

    name: str
    module: str  # last component of the module's path
    shape: tuple[int, ...]
    role: Role
    copies: int = 1
    active: int = 1

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether tokens are multiplied with it."""
        return self.role in (Role.FIRST, Role.INNER, Role.LAST)

    @property
    def rows(self) -> int:
        """Outputs of a matrix for one token."""
        return self.shape[-2] * self.active

    @property
    def columns(self) -> int:
        """Inputs of a matrix for one token."""
        return self.shape[-1] * self.active

    def touched(self, tokens: int) -> int:
        """Elements that `tokens` tokens read, if every expert is as likely: E (1 - (1 - a/E)^tokens) experts."""
        if self.copies == 1:
            return self.numel if tokens else 0
        missed = (1 - self.active / self.copies) ** tokens
        return round(self.numel * (1 - missed))


@functools.lru_cache(maxsize=64)
def parts_of(config: ModelConfig) -> Mapping[SubLayer, Mapping[Place, tuple[Part, ...]]]:
    """Every parameter of the model by sub-layer and place. Each has a kind: a new name needs a row in _KINDS."""
    found: dict[SubLayer, dict[Place, list[Part]]] = {s: defaultdict(list) for s in SubLayer}
    for name, shape in parameter_shapes(config).items():
        path = name.split(".")
        sub_layer, role = _kind(path)
        if len(shape) < 2 and role is not Role.SCALE:
            role = Role.VECTOR
        place = _place(path)
        copies = active = 1
        if len(shape) == 3:
            copies, active = shape[0], _active_experts(config, place)
        part = Part(name, path[-2], shape, role, copies, active)
        found[sub_layer][place].append(part)
    return {s: {p: tuple(parts) for p, parts in places.items()} for s, places in found.items()}


def _kind(path: list[str]) -> tuple[SubLayer, Role]:
    for component in reversed(path[:-1]):
        if component in _KINDS:
            return _KINDS[component]
        if component == "norm" or component.endswith(("_norm", "layernorm")):
            return SubLayer.NORM, Role.SCALE if path[-1] == "weight" else Role.VECTOR
    raise AssertionError(f"parameter {'.'.join(path)} belongs to no sub-layer that cost knows")


def _place(path: list[str]) -> Place:
    layer = int(path[path.index("layers") + 1]) if "layers" in path else None
    group = "own"
    if "cross_attn" in path:
        group = "source" if path[-2] in ("k_proj", "v_proj") else "cross"
    return Place(layer, path[0] == "encoder", group)


def _active_experts(config: ModelConfig, place: Place) -> int:
    stack = config.encoder if place.encoder else config
    assert stack is not None and place.layer is not None, "experts stand in blocks"
    experts = stack.feed_forward_of(place.layer).experts
    assert experts is not None, "a weight with three axes belongs to experts"
    return experts.num_active
