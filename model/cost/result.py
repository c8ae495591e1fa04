"""The answer: one row per sub-layer, and the whole model as their sum."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..gpus import Gpu
from .parts import SubLayer

Mode = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of sub-layer over all layers of the model, in one forward pass.

    flops counts matrix products as torch's FlopCounterMode does in the reference module: a multiply-add is 2, every
    query meets every key, every expert every token, element-wise work is free. needed_flops leaves out the pairs
    that the mask hides and the experts that a token does not use: what a good kernel computes. Bytes are traffic to
    and from the GPU's memory, except weight_bytes, which is what is stored (zero for a tied head, whose
    read_weight_bytes are the embedding's).
    """

    name: SubLayer
    parameters: int
    flops: int
    needed_flops: int
    weight_bytes: int
    read_weight_bytes: int
    activation_bytes: int
    kv_cache_bytes: int
    peak: float  # FLOP/s
    bandwidth: float  # bytes/s

    @property
    def moved_bytes(self) -> int:
        """Weights read, activations read and written, cache read and written."""
        return self.read_weight_bytes + self.activation_bytes + self.kv_cache_bytes

    @property
    def intensity(self) -> float:
        """needed_flops per byte moved."""
        return self.needed_flops / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def compute_seconds(self) -> float:
        return self.needed_flops / self.peak

    @property
    def memory_seconds(self) -> float:
        return self.moved_bytes / self.bandwidth

    @property
    def seconds(self) -> float:
        """The roofline: no kernel is faster."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """Which of the two limits binds."""
        return "compute" if self.compute_seconds > self.memory_seconds else "memory"

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON types, derived numbers included."""
        fields = asdict(self) | {"name": self.name.value}
        return fields | {
            "moved_bytes": self.moved_bytes,
            "intensity": self.intensity,
            "seconds": self.seconds,
            "bound": self.bound,
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """One forward pass of a model on one GPU.

    prefill: `sequence` new tokens in each of `batch` sequences, logits for all of them, the cache written.
    decode: one new token in each sequence, which sees `sequence` positions including its own.
    kv_cache_bytes: the cache of the whole batch at `sequence` tokens; kv_cache_bytes_per_token: what one
    more token of one sequence adds while every layer still keeps all of them.
    """

    mode: Mode
    batch: int
    sequence: int
    dtype: str
    gpu: Gpu
    rows: tuple[Row, ...]
    kv_cache_bytes_per_token: int
    kv_cache_bytes: int

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    @property
    def flops(self) -> int:
        """Matrix products as torch's counter sees them."""
        return sum(row.flops for row in self.rows)

    @property
    def needed_flops(self) -> int:
        """flops without masked pairs and idle experts."""
        return sum(row.needed_flops for row in self.rows)

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory, tied ones once."""
        return sum(row.weight_bytes for row in self.rows)

    @property
    def activation_bytes(self) -> int:
        return sum(row.activation_bytes for row in self.rows)

    @property
    def moved_bytes(self) -> int:
        return sum(row.moved_bytes for row in self.rows)

    @property
    def seconds(self) -> float:
        """The sub-layers' rooflines one after the other."""
        return sum(row.seconds for row in self.rows)

    @property
    def new_tokens(self) -> int:
        """Tokens that the pass takes in."""
        return self.batch * (self.sequence if self.mode == "prefill" else 1)

    @property
    def fits(self) -> bool:
        """Whether weights and cache fit the GPU's memory."""
        return self.weight_bytes + self.kv_cache_bytes <= self.gpu.memory

    def row(self, name: SubLayer) -> Row:
        """The row of one sub-layer."""
        (found,) = (row for row in self.rows if row.name is name)
        return found

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON types."""
        return {
            "mode": self.mode,
            "batch": self.batch,
            "sequence": self.sequence,
            "dtype": self.dtype,
            "gpu": self.gpu.name,
            "parameters": self.parameters,
            "flops": self.flops,
            "needed_flops": self.needed_flops,
            "weight_bytes": self.weight_bytes,
            "activation_bytes": self.activation_bytes,
            "moved_bytes": self.moved_bytes,
            "kv_cache_bytes_per_token": self.kv_cache_bytes_per_token,
            "kv_cache_bytes": self.kv_cache_bytes,
            "gpu_memory_bytes": int(self.gpu.memory),
            "fits": self.fits,
            "seconds": self.seconds,
            "tokens_per_second": self.new_tokens / self.seconds,
            "rows": [row.as_dict() for row in self.rows],
        }
