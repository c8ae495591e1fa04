"""Compile a kernel ahead of time, without a GPU, into PTX that any machine of the architecture loads.

plugin, dtypes, sizes, attributes, arch -> Compiled(name, ptx, launch, shared memory)

The promise: PTX for sm_XX runs on every GPU of compute capability X.X and newer whose driver knows PTX 8.7
(CUDA 12.8 and newer). The same call gives the same bytes on every machine with the same Triton.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..core.dtypes import DType
from ..core.errors import UsageError
from .checks import check_attributes, output_dtypes
from .launch import ARCHITECTURES, FP8_ARCHITECTURES, WARP, Launch, tuning
from .ptx import finish
from .registry import Plugin
from .table import AttributeValue
from .triton_api import require_triton

PTX_VERSION = 87  # the lowest that knows sm_120; FP8 on sm_89 needs 81
FP_FUSION = False  # every multiply and add is rounded by itself, as in the interpreter that proves the numbers
ROWS = "rows"  # the one scalar argument, an int32 between the inputs and the outputs

TRITON_TYPES = {
    DType.FP32: "fp32",
    DType.FP16: "fp16",
    DType.BF16: "bf16",
    DType.FP8_E4M3: "fp8e4nv",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """A kernel as an engine carries it. shared: bytes of dynamic shared memory; arch: of the PTX's target."""

    name: str
    ptx: str
    arch: int
    launch: Launch
    shared: int


def supported_architectures(plugin: Plugin) -> tuple[int, ...]:
    """Where the operator has a kernel: E4M3 needs compute capability 8.9."""
    return FP8_ARCHITECTURES if plugin.table.quantises else ARCHITECTURES


def architecture_for(plugin: Plugin, gpu: int) -> int:
    """The architecture to compile for, to run on compute capability gpu / 10: the newest that it can load.

    Raises UsageError where there is none: FP8 below 8.9, anything below 8.0.
    """
    known = [arch for arch in supported_architectures(plugin) if arch <= gpu]
    if not known:
        raise UsageError(
            f"{plugin.table.identifier} for sm_{gpu}",
            found="no kernel",
            fix=f"Known: {', '.join(f'sm_{a}' for a in supported_architectures(plugin))}, and newer",
        )
    return known[-1]


def kernel_constants(
    attributes: Mapping[str, AttributeValue], launch: Launch
) -> dict[str, int | float | str]:
    """The compile-time arguments: attributes and the launch's constants, in capitals."""
    return {**{k.upper(): v for k, v in attributes.items()}, **launch.constants}


def plan_launch(
    plugin: Plugin,
    dtype: DType,
    sizes: Mapping[str, Any],
    attributes: Mapping[str, AttributeValue],
    arch: int,
) -> Launch:
    """The launch of one call. dtype: the first input's; attributes are complete (checks.check_attributes)."""
    known = {**sizes, **attributes, "itemsize": dtype.itemsize}
    return plugin.launch(known, tuning(plugin.family, arch))


def compile_kernel(
    plugin: Plugin,
    dtypes: Sequence[DType],
    sizes: Mapping[str, Any],
    attributes: Mapping[str, AttributeValue],
    arch: int,
) -> Compiled:
    """Compile for input `dtypes`, the constant `sizes` of the row, and GPUs of compute capability arch / 10.

    Raises UsageError for what the table or the architecture does not allow, UnavailableError without Triton,
    BuildError when the PTX cannot be made portable.
    """
    require_triton()
    arch = architecture_for(plugin, arch)
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    filled = check_attributes(plugin.table, attributes)
    launch = plan_launch(plugin, dtypes[0], sizes, filled, arch)
    constants = kernel_constants(filled, launch)
    pointers = [*dtypes, *output_dtypes(plugin.table, dtypes)]
    names = [n for n in plugin.kernel.arg_names if n not in constants]
    assert len(names) == len(pointers) + 1, f"{names} for {len(pointers)} tensors"
    rows = names.index(ROWS)
    types = ["*" + TRITON_TYPES[d] for d in pointers]
    types.insert(rows, "i32")
    source = ASTSource(
        fn=plugin.kernel,
        signature=dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in range(len(names)) if i != rows},
    )
    options = {
        "num_warps": launch.warps,
        "num_stages": 1,
        "ptx_version": PTX_VERSION,
        "enable_fp_fusion": FP_FUSION,
    }
    with _pinned(options):
        built = triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=options)
    assert built.metadata.num_warps == launch.warps
    return Compiled(
        name=built.metadata.name,
        ptx=finish(built.asm["ptx"], arch, len(names)),
        arch=arch,
        launch=launch,
        shared=built.metadata.shared,
    )


@contextmanager
def _pinned(options: Mapping[str, Any]) -> Iterator[None]:
    """Compile without line information, and only with options that exist: a misspelt one would be ignored."""
    from triton import knobs
    from triton.backends.nvidia.compiler import CUDAOptions

    unknown = options.keys() - CUDAOptions.__dataclass_fields__.keys()
    assert not unknown, f"Triton has no option {unknown}"
    with knobs.compilation.scope(), knobs.language.scope():
        knobs.compilation.disable_line_info = True
        yield
