"""Reports of typing and quantising -> records of the manifest."""

from typing import TYPE_CHECKING, Literal

from .core.conversion import (
    AxisExponents,
    CacheRecord,
    HeadroomRecord,
    LinearRecord,
    QuantizationRecord,
    TypingRecord,
)

if TYPE_CHECKING:
    from .calibration import Calibration
    from .export.precision import PrecisionReport
    from .export.precision.report import Headroom
    from .export.quantize.report import QuantizeReport


def typing_record(report: "PrecisionReport") -> TypingRecord:
    """What the manifest says of a typed graph: what moved, what stayed wide, and the tightest value of each layer."""
    tightest: dict[int | None, Headroom] = {}
    for row in report.headroom:
        known = tightest.get(row.layer)
        if known is None or row.before < known.before:
            tightest[row.layer] = row
    rows = sorted(tightest.values(), key=lambda r: (r.layer is None, r.layer or 0))
    changes = [
        f"{len(s.values)} values with {s.largest:.4g} at {s.because}: held times 2^{-s.exponent}"
        for s in report.streams
    ]
    changes += [
        f"{m.channels} channel{'s' * (m.channels > 1)} of {len(m.values)} values with {m.largest:.4g} at {m.because}: "
        f"held times 2^{-m.exponents[1]} to 2^{-m.exponents[0]}, each its own"
        for m in report.migrated
    ]
    changes += [f"{c.where}: {c.before:g} -> {c.after:g}" for c in report.attributes]
    changes += [f"mask {c.where}: {c.before:g} -> {c.after:g}" for c in report.masks]
    return TypingRecord(
        exponents=report.scaled,
        by_channel={
            name: tuple(AxisExponents(axis=a.axis, exponents=a.exponents) for a in axes)
            for name, axes in report.by_channel.items()
        },
        changes=tuple(changes),
        warnings=(*map(str, report.nonfinite), *report.notes),
        islands=tuple(f"{i.node} ({i.operator}, {i.dtype}): {i.reason}" for i in report.islands),
        headroom=tuple(
            HeadroomRecord(
                layer=r.layer,
                value=r.value,
                largest=r.largest,
                before=r.before,
                after=r.after,
                dtype=r.dtype,
            )
            for r in rows
        ),
    )


def quantization_record(
    report: "QuantizeReport",
    base: Literal["fp16", "bf16"],
    observer: str | None,
    calibration: "Calibration",
) -> QuantizationRecord:
    """What the manifest says of a quantised graph: every linear, with its scale or why it was left alone.

    observer: None where no static scale was chosen.
    """
    return QuantizationRecord(
        format=report.format,
        base=base,
        observer=observer or "",
        rounding=report.rounding,
        calibration=calibration.source,
        tokens=calibration.tokens,
        quantized_share=report.share_of_flops,
        linears=tuple(
            LinearRecord(
                name=row.name,
                format=row.format or base,
                share=row.flops,
                amax=row.amax,
                scale=row.scale,
                kept=row.reason or None,
            )
            for row in report.linears
        ),
        caches=tuple(
            CacheRecord(past=c.past, present=c.present, scale=c.scale, amax=c.amax)
            for c in report.caches
        ),
        epilogues=report.epilogues,
    )
