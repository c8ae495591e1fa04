"""Blockforge: PyTorch transformers to TensorRT engines, with proof of numbers, dtypes and kernels.

bundle = blockforge.build("recipes/smollm2.toml")     # export, compile, validate, report
bundle = blockforge.Bundle.open("bundles/smollm2")    # what an earlier build wrote
with blockforge.Session(bundle, precision="fp32") as session:
    outputs = session.run({"input_ids": ids})         # numpy in, numpy out
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.bundle import Bundle as Bundle
    from .engines.session import Session as Session
    from .pipeline import build as build

_HOMES = {"Bundle": ".core.bundle", "Session": ".engines.session", "build": ".pipeline"}

__all__ = ["Bundle", "Session", "build"]


def __getattr__(name: str) -> Any:
    """Import on first use: `import blockforge` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name], __name__), name)
