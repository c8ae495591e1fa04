"""Several engines, one after another; another Compiler may spread them over machines."""

from collections.abc import Callable, Sequence

from ..core.manifest import EngineRecord
from ..core.progress import Progress
from .compile import compile_engine
from .request import CompileRequest

Compiler = Callable[[Sequence[CompileRequest], Progress], list[EngineRecord]]


def one_by_one(requests: Sequence[CompileRequest], progress: Progress) -> list[EngineRecord]:
    """Compile in the order given; the first error ends it. Raises what compile_engine raises."""
    return [compile_engine(request, progress) for request in requests]
