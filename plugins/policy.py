"""Where a plugin takes the place of a function body: the recipe's wish, and the evidence behind `auto`.

setting "auto" | "off" | [names] + operators of the graph -> one Choice per operator, each with its reason

Only full TensorRT can carry the kernels; TensorRT-RTX and ONNX Runtime always get the body. `auto` takes a
plugin only where a measurement on that architecture shows that it beats what TensorRT makes of the body.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.errors import UsageError
from .aot import supported_architectures
from .registry import plugin_named, registered

RUNTIME = "tensorrt"  # the only one that takes plugins


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known of one operator. rtx_kernels: device kernels that TensorRT-RTX 1.7.1 plans for its body on
    sm89, FP16 with dynamic rows (counted; not a time). speedup: sm -> plugin over body in full TensorRT, measured.
    """

    rtx_kernels: int
    speedup: Mapping[int, float] = field(default_factory=dict)


EVIDENCE: dict[str, Evidence] = {
    plugin.name: Evidence(rtx_kernels=3 if plugin.name == "QKNormRope" else 1)
    for plugin in registered()
}

MARGIN = 1.02  # a measured gain below this is noise


@dataclass(frozen=True, slots=True)
class Choice:
    """What is used for one operator, and why; the manifest records it."""

    operator: str
    plugin: bool
    reason: str


def plugin_policy(
    setting: str | Sequence[str],
    operators: Iterable[str],
    *,
    runtime: str,
    arch: int,
    evidence: Mapping[str, Evidence] | None = None,
) -> tuple[Choice, ...]:
    """Decide for each of the graph's blockforge operators (names without domain), in their order.

    runtime: as targets spell it (`tensorrt`, `tensorrt-rtx`, `onnxruntime`); arch: 90 for sm_90.
    Raises UsageError for an unknown setting or name, and for a named plugin that the runtime cannot carry or
    the architecture has no kernel for.
    """
    known = EVIDENCE if evidence is None else evidence
    names = [setting] if isinstance(setting, str) else list(setting)
    if isinstance(setting, str) and setting not in ("auto", "off"):
        raise UsageError(
            f"plugins = {setting!r}",
            found="neither auto nor off",
            fix=f"Use auto, off or a list of {', '.join(p.name for p in registered())}",
        )
    wanted = () if isinstance(setting, str) else tuple(plugin_named(n).name for n in names)
    return tuple(
        _choose(name, setting, wanted, runtime, arch, known) for name in dict.fromkeys(operators)
    )


def _choose(
    name: str,
    setting: str | Sequence[str],
    wanted: Sequence[str],
    runtime: str,
    arch: int,
    evidence: Mapping[str, Evidence],
) -> Choice:
    plugin = plugin_named(name)
    obstacle = ""
    if runtime != RUNTIME:
        obstacle = f"{runtime} takes no plugins"
    elif arch < supported_architectures(plugin)[0]:
        obstacle = f"there is no kernel for sm_{arch}"
    if name in wanted:
        if obstacle:
            raise UsageError(f"plugins = {list(wanted)}", found=obstacle, fix=f"Leave {name} out")
        return Choice(name, True, "named in the recipe")
    if setting == "off":
        return Choice(name, False, "plugins are off")
    if setting != "auto":
        return Choice(name, False, "not named in the recipe")
    if obstacle:
        return Choice(name, False, obstacle)
    found = evidence.get(name)
    speedup = found.speedup.get(arch) if found else None
    if speedup is None:
        counted = (
            f"; TensorRT-RTX plans {found.rtx_kernels} kernel(s) for the body" if found else ""
        )
        return Choice(name, False, f"not measured on sm_{arch}{counted}")
    verb = "beats" if speedup >= MARGIN else "does not beat"
    return Choice(name, speedup >= MARGIN, f"measured: {verb} the body, {speedup:.2f}x")
