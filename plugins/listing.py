"""What the operators are and what they can gain, for `blockforge plugins`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..core.dtypes import DType
from .aot import Compiled, compile_kernel, supported_architectures
from .registers import REGISTERS
from .registry import Plugin, plugin_named, registered
from .table import AttributeValue, markdown
from .traffic import fused_bytes, kernel_bytes, primitive_bytes

ROW = 4096  # elements of the listed kernels' rows
HEADS = {"D": 128, "q_num_heads": 32, "kv_num_heads": 8}  # of the listed QKNormRope


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """One operator.

    dtypes: letter -> element types; registers: sm -> 32-bit registers per thread (FP16, rows of 4096; heads of
    128); bytes_*: per element, activations of two bytes; limit_*: how much faster the kernel could be where only
    memory traffic counts, over primitive operators and over one kernel per operator.
    """

    name: str
    doc: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dtypes: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    architectures: tuple[int, ...]
    registers: Mapping[int, int]
    bytes_fused: int
    bytes_primitive: int
    bytes_kernels: int
    limit_primitive: float
    limit_kernels: float

    def json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def list_plugins() -> tuple[Listing, ...]:
    """Every operator, in the registry's order. Needs neither Triton nor a GPU."""
    return tuple(_listing(plugin) for plugin in registered())


def example_call(
    plugin: Plugin, dtype: DType = DType.FP16, row: int = ROW
) -> tuple[list[DType], dict[str, int], dict[str, AttributeValue]]:
    """Input types, sizes and attributes of a plain call: scales and angles in FP32, the rest in `dtype`."""
    wide = {"S": DType.FP32, "A": DType.FP32}
    dtypes = [wide.get(t.type, dtype) for t in plugin.table.inputs]
    sizes = {"D": HEADS["D"]} if plugin.table.row == "D" else {"N": row}
    attributes: dict[str, AttributeValue] = {
        a.name: HEADS.get(a.name, 1e-5) for a in plugin.table.attributes if a.default is None
    }
    return dtypes, sizes, attributes


def plugin_ptx(name: str, *, arch: int = 90, dtype: DType = DType.FP16, row: int = ROW) -> Compiled:
    """The PTX of one operator for rows of `row` elements.

    Raises UsageError for an unknown name, type or architecture, UnavailableError without Triton.
    """
    plugin = plugin_named(name)
    return compile_kernel(plugin, *example_call(plugin, dtype, row), arch)


def plugins_markdown() -> str:
    """Every operator's table as documentation."""
    return "\n".join(markdown(plugin.table) for plugin in registered())


def _listing(plugin: Plugin) -> Listing:
    table = plugin.table
    fused = fused_bytes(table)
    primitive, kernels = primitive_bytes(plugin.steps), kernel_bytes(plugin.steps)
    return Listing(
        name=table.name,
        doc=table.doc,
        inputs=tuple(f"{t.name}: {t.type}[{t.shape}]" for t in table.inputs),
        outputs=tuple(f"{t.name}: {t.type}[{t.shape}]" for t in table.outputs),
        dtypes={k: tuple(d.value for d in v) for k, v in table.types.items()},
        attributes=tuple(a.name for a in table.attributes),
        architectures=supported_architectures(plugin),
        registers=REGISTERS.get(table.name, {}),
        bytes_fused=fused,
        bytes_primitive=primitive,
        bytes_kernels=kernels,
        limit_primitive=primitive / fused,
        limit_kernels=kernels / fused,
    )
