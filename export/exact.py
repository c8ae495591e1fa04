"""Run a module of any float type in float64 without converting it first.

Each operator call sees its float arguments, weights included, widened to float64, and its float type
arguments (`.to(torch.float16)`) replaced by float64: no rounding is left but float64's own, and one weight
at a time is held wide.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


def in_float64() -> contextlib.AbstractContextManager[Any]:
    """A context in which torch computes every floating-point operator in float64."""
    mode: contextlib.AbstractContextManager[Any] = _InFloat64()  # type: ignore[no-untyped-call]
    return mode


class _InFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the operator with widened arguments."""
        return func(*tree_map(_widened, args), **tree_map(_widened, kwargs or {}))


def _widened(argument: object) -> object:
    if isinstance(argument, torch.Tensor):
        return argument.double() if argument.is_floating_point() else argument
    if isinstance(argument, torch.dtype):
        return torch.float64 if argument.is_floating_point else argument
    return argument
