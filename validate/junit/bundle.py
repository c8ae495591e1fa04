"""A bundle's manifest -> test cases: each limit of each verdict, each demand on each engine's planned kernels."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from ...core.manifest import EngineRecord, GateRecord, Manifest, VariantRecord, VerdictRecord
from ..limits import Limits
from .check import Check, limit_check, not_run

KERNELS = "max_kernels_per_block"
# The gate that each limit becomes (gates.py), by the end of its name, where a runner without inner values has none.
INNER = {
    "max_layer_error_over_floor": "error over floor (worst layer)",
    "max_overflows": "values that overflow",
}


def bundle_checks(manifest: Manifest) -> tuple[Check, ...]:
    """One test case for each precision, target and limit; what was not run is skipped, with its reason.

    The first case of an engine has the time of the build that it looks at.
    """
    return tuple(
        check
        for variant in manifest.variants
        for part in (_verdicts(manifest, variant), _engines(manifest, variant))
        for check in part
    )


def _verdicts(manifest: Manifest, variant: VariantRecord) -> Iterator[Check]:
    if not variant.verdicts:
        group = f"{manifest.name}.{variant.precision}"
        yield not_run(group, "numbers", "not judged: blockforge validate does it")
    for verdict in variant.verdicts:
        group = f"{manifest.name}.{variant.precision}.{verdict.runner}"
        if not verdict.judged:
            yield not_run(group, "numbers", verdict.notes[0] if verdict.notes else "no gate")
            continue
        yield from (limit_check(group, gate) for gate in verdict.gates)
        yield from _unmeasured(group, verdict, _limits(manifest, variant))
        if not verdict.passed and all(gate.passed for gate in verdict.gates):
            yield Check(group, "verdict", "failed", "\n".join(verdict.notes) or "it failed")


def _unmeasured(group: str, verdict: VerdictRecord, limits: Mapping[str, Any]) -> Iterator[Check]:
    """Limits of the recipe that this runner cannot be measured by."""
    for name, gate in INNER.items():
        if limits.get(name) is not None and not any(g.name.endswith(gate) for g in verdict.gates):
            yield not_run(group, gate, f"{verdict.runner} shows no inner values")


def _limits(manifest: Manifest, variant: VariantRecord) -> Mapping[str, Any]:
    section = _table(manifest.recipe, "validate")
    own = _table(section, "limits_for").get(variant.precision)
    found = own if isinstance(own, dict) else _table(section, "limits")
    return {field.name: found.get(field.name) for field in fields(Limits)}


def _engines(manifest: Manifest, variant: VariantRecord) -> Iterator[Check]:
    """Planned kernels, and for a plan that did not run here its numbers."""
    section = _table(manifest.recipe, "engines")
    own = _table(section, "demands_for").get(variant.precision)
    demands: Mapping[str, Any] = own if isinstance(own, dict) else section
    ran = {verdict.runner for verdict in variant.verdicts}
    for engine in variant.engines:
        group = f"{manifest.name}.{variant.precision}.{engine.target}"
        if engine.path is None:
            reason = "ONNX Runtime runs the graph as it is: no kernels are planned"
            yield not_run(group, "planned kernels", reason, seconds=engine.build_seconds)
            continue
        first, *others = _kernels(group, engine, section, demands)
        yield from (replace(first, seconds=engine.build_seconds), *others)
        if engine.target not in ran:
            reason = "plan compiled, not run here: a plan needs its GPU; its graph is judged"
            yield not_run(group, "numbers", reason)


def _kernels(
    group: str, engine: EngineRecord, section: Mapping[str, Any], demands: Mapping[str, Any]
) -> Iterator[Check]:
    """Each demand by the text that engines/assertions.py starts its violation with; element types by what is left."""
    left = list(engine.violations)
    most = demands.get(KERNELS)
    if most is not None:
        missed = _taken(left, f"{KERNELS} = {most:g}")
        if engine.kernels_per_block is None:
            yield _demand(group, KERNELS, missed)
        else:
            count = engine.kernels_per_block
            gate = GateRecord(
                name=KERNELS, value=count, relation="<=", limit=most, passed=not missed
            )
            found = limit_check(group, gate)
            yield replace(found, text="\n".join((found.text, *missed)))
    for kind in demands.get("require_fused") or ():
        text = f'require_fused = ["{kind}"]'
        yield _demand(group, text, _taken(left, text))
    for kind, dtype in (demands.get("require_dtype") or {}).items():
        text = f'require_dtype = {{ {kind} = "{dtype}" }}'
        missed = _taken(left, text) or _taken(left, text.replace('"fp8"', '"fp8_e4m3"'))
        yield _demand(group, text, missed)
    if section.get("check_dtype", True) or left:
        yield _demand(group, "element types of the kernels", left)
    else:
        yield not_run(group, "element types of the kernels", "check_dtype = false in the recipe")


def _demand(group: str, name: str, missed: list[str]) -> Check:
    return Check(group, name, "failed" if missed else "passed", "\n".join(missed))


def _taken(violations: list[str], demand: str) -> list[str]:
    """The violations of one demand, removed from the list."""
    found = [violation for violation in violations if violation.startswith(f"{demand}: ")]
    violations[:] = [violation for violation in violations if violation not in found]
    return found


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}
