"""Results as tables: a bundle, an account of costs, the fused operators, what a fusion run did."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .console import human_bytes, output_width, table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from .core.manifest import EngineRecord, Manifest, VariantRecord, VerdictRecord
    from .export.fusions import FusionReport
    from .model.cost import Cost, CostReport, SubLayer
    from .plugins.listing import Listing
    from .quantization import Outcome

WORST = 3  # linears whose errors quantize prints
OVER_FLOOR = ": error over floor"  # how validate names the gate that pools all cases of an output
# Columns that a narrow terminal can do without, the first to go first.
OPTIONAL = ("judged by", "types", ">build", ">KL", ">perplexity", ">tokens", ">per block")


def manifest_table(manifest: "Manifest", width: int | None = None) -> "Table":
    """One row per precision and target: size, build time, kernels, dtypes and the verdict.

    Columns are left out until the table fits `width` (None: the output's own width).
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=output_width() if width is None else width)
    rows = [_engine_row(v, engine) for v in manifest.variants for engine in v.engines or (None,)]
    for count in range(len(OPTIONAL) + 1):
        columns = [c for c in (rows[0] if rows else {}) if c not in OPTIONAL[:count]]
        made = table(manifest.name, *columns)
        for row in rows:
            made.add_row(*(row[c] for c in columns))
        if (
            Measurement.get(console, console.options.update(width=999), made).maximum
            <= console.width
        ):
            break
    return made


def _engine_row(variant: "VariantRecord", engine: "EngineRecord | None") -> dict[str, str]:
    """Column -> cell; a graph without engines has a row too."""
    verdict = verdict_of(variant.verdicts, engine.target if engine else "")
    passed = verdict is not None and verdict.passed and not (engine and engine.violations)
    ratios = [g.value for g in verdict.gates if g.name.endswith(OVER_FLOOR)] if verdict else []
    types = ", ".join(f"{n} {name}" for name, n in engine.dtypes.items()) if engine else ""
    return {
        "!precision": variant.precision,
        "!target": engine.target if engine else "-",
        ">size": human_bytes(engine.bytes) if engine else "-",
        ">build": f"{engine.build_seconds:.1f} s" if engine else "-",
        ">kernels": _or_dash(engine and engine.kernels, "d"),
        ">per block": _or_dash(engine and engine.kernels_per_block, "g"),
        "types": types or "-",
        ">error / floor": _or_dash(max(ratios, default=None), ".2f"),
        ">perplexity": _or_dash(verdict and verdict.perplexity, ".3f"),
        ">KL": _or_dash(verdict and verdict.kl_divergence, ".2g"),
        ">tokens": _or_dash(verdict and verdict.token_agreement, ".1%"),
        "judged by": verdict.runner if verdict else "-",
        "!verdict": "[green]pass[/]" if passed else "[bold red]FAIL[/]" if verdict else "-",
    }


def verdict_of(verdicts: "tuple[VerdictRecord, ...]", target: str) -> "VerdictRecord | None":
    """The verdict that speaks for a target: its own gated run, else the typed evaluator's."""
    gated = [v for v in verdicts if v.gates]
    own = [v for v in gated if v.runner == target]
    evaluated = [v for v in gated if v.runner == "typed-evaluator"]
    return next(iter(own or evaluated), None)


def _or_dash(value: Any, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def cost_tables(report: "CostReport") -> "Group":
    """A summary, and one table per pass: a row per sub-layer, its roofline time and what bounds it."""
    from rich.console import Group

    prefill, decode = report.prefill, report.decode
    memory = prefill.weight_bytes + prefill.kv_cache_bytes
    lines = [
        f"{report.preset}  {prefill.parameters:,} parameters, "
        f"{human_bytes(prefill.weight_bytes)} in {prefill.dtype}",
        f"KV cache  {human_bytes(prefill.kv_cache_bytes_per_token)} per token, "
        f"{human_bytes(prefill.kv_cache_bytes)} for {prefill.batch} x {prefill.sequence} tokens",
        f"{prefill.gpu.name}  {human_bytes(memory)} of {human_bytes(prefill.gpu.memory)}: "
        + ("fits" if prefill.fits else "does not fit"),
        "",
    ]
    tables = [_cost_table(prefill, {})]
    if decode is not None:
        tables.append(_cost_table(decode, report.compute_bound_batch))
    return Group(*lines, *tables)


def _cost_table(cost: "Cost", bounds: "dict[SubLayer, int | None]") -> "Table":
    rate = cost.new_tokens / cost.seconds
    title = f"{cost.mode}: {cost.seconds * 1e3:,.3f} ms, {rate:,.0f} tokens/s at most"
    columns = [
        *("!sub-layer", ">parameters", ">GFLOPs", ">needed", ">moved", ">FLOP/byte", ">ms", "bound")
    ]
    made = table(title, *columns, *([">computes from batch"] if bounds else []))
    for row in cost.rows:
        cells = [
            row.name.value,
            f"{row.parameters:,}",
            f"{row.flops / 1e9:,.1f}",
            f"{row.needed_flops / 1e9:,.1f}",
            human_bytes(row.moved_bytes),
            f"{row.intensity:,.1f}",
            f"{row.seconds * 1e3:,.3f}",
            row.bound,
        ]
        if bounds:
            cells.append(str(bounds[row.name] or "never") if row.name in bounds else "-")
        made.add_row(*cells)
    return made


def plugin_table(rows: "Sequence[Listing]") -> "Table":
    """One row per fused operator; bytes are per element of a two-byte activation."""
    made = table(
        "fused operators",
        *("!operator", "types", "!architectures", ">registers", ">bytes"),
        *(">unfused", ">gain at most", ">over fused kernels"),
    )
    for row in rows:
        registers = sorted({str(r) for r in row.registers.values()})
        made.add_row(
            row.name,
            "; ".join(f"{letter}: {', '.join(names)}" for letter, names in row.dtypes.items()),
            ", ".join(f"sm{a}" for a in row.architectures),
            "-".join(registers[:: max(1, len(registers) - 1)]) or "-",
            str(row.bytes_fused),
            str(row.bytes_primitive),
            f"{row.limit_primitive:.2f}x",
            f"{row.limit_kernels:.2f}x",
        )
    return made


def fusion_table(report: "FusionReport", explain: bool) -> "Group":
    """Counts per pattern; with `explain` what replaced what, and why each near match was left alone."""
    from rich.console import Group
    from rich.text import Text

    made = table(
        "instances in the result", *(f">{name}" for name in report.counts), ">nodes", ">opset"
    )
    made.add_row(
        *map(str, report.counts.values()),
        f"{report.nodes_before} -> {report.nodes_after}",
        f"{report.opset_before} -> {report.opset_after}",
    )
    return Group(made, Text(report.explain())) if explain else Group(made)


def quantization_tables(outcome: "Outcome") -> "Group":
    """What typing and quantising a graph did: a row each, and below it whatever stayed wide, with its reason."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    typing, quantization = outcome.typing, outcome.quantization
    if typing is not None:
        made = table(
            f"typed in {typing.precision}" + (" before: copied" if typing.already else ""),
            *(">nodes", f">in {typing.precision}", ">casts", ">weights scaled"),
            *(">stay wide by range", ">range unknown"),
        )
        counts = (
            *(typing.nodes, typing.low_nodes, typing.casts),
            len({*typing.scaled, *typing.by_channel}),
            *(len(typing.islands), len(typing.unproved)),
        )
        made.add_row(*map(str, counts))
        parts.append(made)
        parts += [Text(f"wide: {i.node} ({i.operator}): {i.reason}") for i in typing.islands]
        parts += [Text(str(cause)) for cause in typing.nonfinite]
        if typing.unproved:
            some = ", ".join(typing.unproved[:4])
            more = f" and {len(typing.unproved) - 4} more" if len(typing.unproved) > 4 else ""
            why = "give --calibration"
            if typing.nonfinite:
                why = "they have numbers that are not finite"
            elif any(row.source == "measured" for row in typing.headroom):
                why = "no calibration input reaches them"
            parts.append(Text(f"no range is known of {some}{more}: {why}"))
        if count := sum(row.source == "measured where finite" for row in typing.headroom):
            parts.append(
                Text(
                    f"the ranges of {count} values are of their finite numbers alone: a mask hides the others"
                )
            )
        parts += [Text(note) for note in typing.notes]
    if quantization is not None:
        made = table(
            f"quantised to {quantization.format}" + (" before: copied" * quantization.already),
            *(">linears", ">quantised", ">of their arithmetic", ">packed", ">weights"),
        )
        made.add_row(
            str(len(quantization.linears)),
            str(len(quantization.quantized)),
            f"{quantization.share_of_flops:.1%}",
            str(quantization.packed),
            f"{human_bytes(quantization.bytes_before)} -> {human_bytes(quantization.bytes_after)}",
        )
        parts.append(made)
        errors = {r.name: r.error for r in quantization.linears if r.error is not None}
        worst = sorted(errors, key=lambda name: errors[name], reverse=True)[:WORST]
        if worst:
            named = ", ".join(f"{name} {errors[name]:.2%}" for name in worst)
            parts.append(
                Text(f"largest relative errors of outputs on the calibration inputs: {named}")
            )
        parts += [Text(f"{r.name}: {r.reason}") for r in quantization.linears if r.reason]
        parts += [Text(note) for note in quantization.notes]
    if outcome.search is not None:
        parts += [Text(line) for line in outcome.search.lines("high")]
    return Group(*parts)
