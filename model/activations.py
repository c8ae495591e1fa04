"""Activations of the feed-forward sub-layer, and the products that gate with them.

relu(z) = max(0, z)        gelu(z) = z Phi(z)  (arXiv 1606.08415)        silu(z) = z / (1 + e^-z)
gelu_tanh(z) = z / 2 (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3)))         GPT-2's and Gemma's gelu
SwiGLU  silu(gate) * up    GeGLU  gelu(gate) * up    ReGLU  relu(gate) * up    GLU  sigmoid(gate) * up
                                                     (Dauphin et al. 2016, arXiv 1612.08083; Shazeer 2020, 2002.05202)
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F  # noqa: N812

from ..core.domain import DOMAIN, DOMAIN_VERSION
from .exporting import exporting


def gelu(z: torch.Tensor) -> torch.Tensor:
    """z Phi(z). Exported as one Gelu."""
    return _gelu(z, "none")


def gelu_tanh(z: torch.Tensor) -> torch.Tensor:
    """gelu by its tanh approximation. Exported as one Gelu."""
    return _gelu(z, "tanh")


def _gelu(z: torch.Tensor, approximate: str) -> torch.Tensor:
    if exporting():
        return torch.onnx.ops.symbolic(
            "Gelu", (z,), {"approximate": approximate}, dtype=z.dtype, shape=z.shape
        )
    return F.gelu(z, approximate=approximate)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up. Exported as one blockforge::SwiGLU node."""
    if exporting():
        return torch.onnx.ops.symbolic(
            f"{DOMAIN}::SwiGLU",
            (gate, up),
            dtype=gate.dtype,
            shape=gate.shape,
            version=DOMAIN_VERSION,
        )
    return F.silu(gate) * up


def geglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up."""
    return gelu(gate) * up


def geglu_tanh(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu_tanh(gate) * up."""
    return gelu_tanh(gate) * up


def reglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """relu(gate) * up."""
    return F.relu(gate) * up


def glu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """sigmoid(gate) * up."""
    return torch.sigmoid(gate) * up


PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
}
GATES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "glu": glu,
    "reglu": reglu,
    "geglu": geglu,
    "geglu_tanh": geglu_tanh,
    "swiglu": swiglu,
}
