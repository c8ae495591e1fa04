"""Arithmetic that must not round its numbers to 16 bit first."""

import torch


def widened(x: torch.Tensor) -> torch.Tensor:
    """float32, float64 for float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    """factor * x in x's type; the factor itself is not rounded to it (16 bit would move sqrt(640) by 1e-4)."""
    return x if factor == 1 else (widened(x) * factor).to(x.dtype)


def soft_capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    """cap * tanh(x / cap) in x's type, between in float32; x where there is no cap."""
    return x if cap is None else (cap * torch.tanh(widened(x) / cap)).to(x.dtype)
