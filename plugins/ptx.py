"""Reading and finishing PTX text: what Triton writes becomes what TensorRT may carry.

Triton adds two trailing pointers to scratch memory that TensorRT would never pass, and names targets such as
sm_90a, which later GPUs refuse. Both are edited here, and anything that would make the edit wrong is refused.
"""

import re
from collections import Counter
from dataclasses import dataclass

from ..core.errors import BuildError

_ENTRY = re.compile(r"\.visible \.entry (?P<name>\w+)\(\n(?P<params>.*?)\n\)", re.DOTALL)
_COMMENT = re.compile(r"//[^\n]*")
_ACCESS = re.compile(
    r"\b(?P<op>ld|st)\.global(?:\.\w+)*?(?:\.v(?P<lanes>\d))?\.[bfus](?P<bits>\d+)\b"
)
_SCRATCH = 2  # global scratch, profile scratch


@dataclass(frozen=True, slots=True)
class Access:
    """One kind of global access: `ld` or `st`, and how many bits one instruction moves."""

    op: str
    bits: int


def parameters(ptx: str) -> tuple[str, ...]:
    """The types of the entry's parameters, in order: u64 for a pointer, u32 for a 32-bit integer."""
    match = _ENTRY.search(ptx)
    assert match, "one entry"
    return tuple(re.findall(r"\.param \.(\w+)", match["params"]))


def accesses(ptx: str) -> Counter[Access]:
    """How often each kind of global access stands in the text."""
    return Counter(
        Access(m["op"], int(m["lanes"] or 1) * int(m["bits"]))
        for m in _ACCESS.finditer(_COMMENT.sub("", ptx))
    )


def finish(ptx: str, arch: int, count: int) -> str:
    """Remove the scratch parameters, name a portable target, drop comments.

    count: parameters that the caller will pass. Raises BuildError when scratch memory is used, when the number
    of parameters does not fit, or when the text holds debug lines (which carry local paths).
    """
    text = _retarget(_strip_scratch(ptx, count), arch)
    text = "\n".join(line.rstrip() for line in _COMMENT.sub("", text).splitlines() if line.strip())
    found = re.search(
        r"^\s*\.(?:loc|file|section)\b.*|[\"'][^\"']*[/\\][^\"']*[\"']", text, re.MULTILINE
    )
    if found:
        raise _refuse(
            f"debug information: {found[0].strip()!r}", "Compile without line information"
        )
    return text + "\n"


def _strip_scratch(ptx: str, count: int) -> str:
    match = _ENTRY.search(ptx)
    if not match:
        raise _refuse("no entry", "Compile one kernel")
    params = match["params"].split(",\n")
    if len(params) != count + _SCRATCH:
        raise _refuse(
            f"{len(params)} parameters where {count} and {_SCRATCH} for scratch memory were expected",
            "A new Triton may pass something else: look at what it adds",
        )
    if any(".u64" not in param for param in params[count:]):
        raise _refuse("a trailing parameter that is no pointer", "Look at what Triton adds")
    for param in params[count:]:
        name = param.split()[-1]
        if len(re.findall(rf"\b{re.escape(name)}\b", ptx)) > 1:
            raise _refuse(
                f"scratch memory is used ({name})", "Write the kernel without scratch memory"
            )
    start, end = match.span("params")
    return ptx[:start] + ",\n".join(params[:count]) + ptx[end:]


def _retarget(ptx: str, arch: int) -> str:
    text, edits = re.subn(
        rf"^\.target sm_{arch}[af]?\b", f".target sm_{arch}", ptx, flags=re.MULTILINE
    )
    if edits != 1:
        raise _refuse(f"no target sm_{arch}", "Compile for the architecture that was asked")
    return text


def _refuse(found: str, fix: str) -> BuildError:
    return BuildError("PTX for TensorRT", found=found, fix=fix)
