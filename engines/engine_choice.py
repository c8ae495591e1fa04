"""Which of a bundle's engines serves a target: the one that was built for it, else a joint one that covers it.

"tensorrt-rtx:sm89" -> the engine of tensorrt-rtx:sm89, else that of tensorrt-rtx:sm89+sm120
"""

from collections.abc import Iterable

from ..core.bundle import Bundle
from ..core.errors import ArtefactError, BlockforgeError, UsageError
from ..core.manifest import EngineRecord, VariantRecord
from .target import Target


def engine_for(engines: Iterable[EngineRecord], target: Target, asked: str) -> EngineRecord | None:
    """The one of `engines` that serves `target`; None where none does.

    Raises UsageError, which says that `asked` was asked, where none was built for just that target and several cover it.
    """
    covering = [each for each in engines if Target.parse(each.target).covers(target)]
    exact = [each for each in covering if each.target == str(target)]
    if not exact and len(covering) > 1:
        raise UsageError(
            asked,
            found=f"{len(covering)} engines cover it: {', '.join(each.target for each in covering)}",
            fix="Name one of them as the target",
        )
    return next(iter(exact or covering), None)


def plan_of(
    bundle: Bundle,
    variant: VariantRecord,
    target: Target,
    error: type[BlockforgeError] = ArtefactError,
) -> EngineRecord:
    """The engine of `variant` that serves `target` and has a plan; raises `error` where there is none.

    Raises UsageError where several do.
    """
    asked = f"engine {target} ({variant.precision}) of {bundle.path}"
    found = engine_for((each for each in variant.engines if each.path), target, asked)
    if found is None:
        has = ", ".join(engine.target for engine in variant.engines) or "none"
        raise error(
            asked,
            found=f"the bundle has {has}",
            fix=f"blockforge compile {bundle.path} --target {target}",
        )
    return found
