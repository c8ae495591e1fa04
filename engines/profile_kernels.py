"""Which optimisation profile each planned kernel belongs to: an engine with several holds one whole plan for each.

TensorRT marks the inputs and outputs of every further profile, `hidden_states [profile 1]`; a kernel belongs to the profile
whose tensors it can be reached from, over shared tensors and over the compiler's own unit (`_myl1` in its name).
"""

import re
from collections.abc import Sequence

from .kernel import Kernel

_UNIT = re.compile(r"_myl\d+(?=_\d+$)")
_PROFILE = re.compile(r" \[profile (\d+)\]$")


def kernels_of_profile(kernels: Sequence[Kernel], profile: int) -> tuple[Kernel, ...]:
    """The kernels of one profile (0: the first), in execution order."""
    group: dict[str, str] = {}  # tensor or unit -> another of the same group

    def root(name: str) -> str:
        while group.setdefault(name, name) != name:
            name = group[name]
        return name

    names = [_joins(kernel) for kernel in kernels]
    for first, *others in filter(None, names):
        for other in others:
            group[root(other)] = root(first)
    profiles = {root(name): int(m[1]) for name in list(group) if (m := _PROFILE.search(name))}
    return tuple(
        kernel
        for kernel, joined in zip(kernels, names, strict=True)
        if (profiles.get(root(joined[0]), 0) if joined else 0) == profile
    )


def _joins(kernel: Kernel) -> list[str]:
    """What ties a kernel to others."""
    unit = _UNIT.search(kernel.name)
    tensors = [tensor.name for tensor in (*kernel.inputs, *kernel.outputs) if tensor.name]
    return ([unit[0]] if unit else []) + tensors
