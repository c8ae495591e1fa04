"""The one door to Triton: present where the kernels are compiled or run, absent everywhere else.

Operators must describe themselves on machines without Triton, so a missing package only turns `jit` into
a no-op; asking for a compiled kernel then says what to install.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..core.errors import UnavailableError

if TYPE_CHECKING:
    import triton.language as tl

    jit: Callable[[Callable[..., Any]], Any]
    AVAILABLE: bool
else:
    try:
        import triton.language as tl
        from triton import jit

        AVAILABLE = True
    except ImportError:
        AVAILABLE = False
        tl = SimpleNamespace(constexpr=object, tensor=object)

        def jit(function):
            """Leave the function as it is: nothing can compile it here."""
            return function


def require_triton() -> None:
    """Raise UnavailableError when Triton is not installed."""
    if not AVAILABLE:
        raise UnavailableError(
            "compile a kernel",
            found="Triton is not installed",
            fix="Run: pip install 'blockforge[gpu]'",
        )


__all__ = ["AVAILABLE", "jit", "require_triton", "tl"]
