"""What the proof commands found, as tables."""

from typing import TYPE_CHECKING

from .console import table

if TYPE_CHECKING:
    from rich.console import Group

    from .validate.divergence import Diff, Divergence


def diff_table(diff: "Diff") -> "Group":
    """Verdict, how much was compared, the rules that outputs break, the first divergence with its cause, and errors of layers and outputs."""
    from rich.console import Group
    from rich.markup import escape

    lines = [
        f"[bold {'green' if diff.equal else 'red'}]{_verdict(diff)}[/]",
        f"  reference  {escape(diff.reference)}",
        f"  candidate  {escape(diff.candidate)}",
        f"  compared   {diff.compared} of {diff.values} values by {diff.mapping}, inputs: {escape(diff.inputs)}",
    ]
    lines += [f"  [red]broken[/]     {escape(str(finding))}" for finding in diff.findings]
    parts: list[object] = ["\n".join(lines)]
    if diff.first is not None:
        parts.append(_first(diff.first, diff))
    totals = table("total errors", "value", ">relative rms")
    for name, error in diff.totals.items():
        totals.add_row(escape(name), f"{error:.3g}")
    if diff.totals:
        parts.append(totals)
    parts += [f"note: {escape(note)}" for note in diff.notes]
    return Group(*parts)  # type: ignore[arg-type]


def _verdict(diff: "Diff") -> str:
    if diff.first is not None:
        return "diverged"
    return "not equal" if diff.findings else "equal within rounding"


def _first(first: "Divergence", diff: "Diff") -> str:
    from rich.markup import escape

    error = first.error
    where = "" if error.place == "whole" else f", worst at {error.place} {list(error.index)}"
    lines = [
        "",
        f"[bold]first divergence: {escape(first.node)} ({first.op_type})[/]",
        f"  [bold]{escape(first.cause.kind)}[/]: {escape(first.cause.text)}",
        f"  value      {escape(first.value)}",
        f"  own error  {error.relative:.3g} with right inputs, {error.over:.3g} times what rounding explains{where}",
    ]
    if first.error_in is not None and first.error_out is not None:
        lines.append(f"  total      {first.error_in:.3g} in, {first.error_out:.3g} out")
    if len(first.nodes) > 1:
        lines.append(f"  nodes      {escape(', '.join(first.nodes[:8]))}")
    if not first.cause.confirmed:
        lines.append("  unconfirmed: no repair of the operator was found that removes the error")
    if diff.also:
        lines.append(f"  also       {escape(', '.join(diff.also[:6]))}")
    if diff.repro is not None:
        lines.append(f"  repro      {escape(str(diff.repro))}: {escape(diff.command)}")
    return "\n".join([*lines, ""])
