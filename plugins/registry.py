"""One row per fused operator, keyed by (domain, name, version)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.defs import OpSchema

from ..core.domain import DOMAIN, DOMAIN_VERSION
from ..core.errors import UsageError
from .launch import Family, Launch, Tuning
from .schema import schema_from_table
from .table import Table
from .traffic import Step

Key = tuple[str, str, int]
Reference = Callable[..., np.ndarray | tuple[np.ndarray, ...]]


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A fused operator: what it accepts, what it means, how it runs.

    table: tensors, types, attributes; the ONNX schema and TensorRT's registration are derived from it.
    body: standard operators that compute the same, for runtimes without a kernel of ours.
    reference: float64 arrays in (attributes by name), float64 arrays out, in the table's order.
    kernel: takes inputs, the number of rows, outputs, then constants: attributes and the launch's, in capitals.
    family, launch: which tuning it uses, and how sizes (with the attributes) and tuning become a Launch.
    steps: the operators it replaces, for the count of bytes that fusion saves (traffic.py).
    """

    table: Table
    body: onnx.FunctionProto
    reference: Reference
    kernel: Any
    family: Family
    launch: Callable[[Mapping[str, Any], Tuning], Launch]
    steps: tuple[Step, ...]

    @cached_property
    def schema(self) -> OpSchema:
        """The ONNX schema."""
        return schema_from_table(self.table)

    @property
    def name(self) -> str:
        """The operator's name in the domain `blockforge`."""
        return self.table.name

    @property
    def key(self) -> Key:
        """(domain, name, version)."""
        return DOMAIN, self.table.name, DOMAIN_VERSION


_PLUGINS: dict[Key, Plugin] = {}


def register(plugin: Plugin) -> Plugin:
    """Add a plugin; ValueError when its key is taken.

    The schema stays out of onnx's global table: ONNX 1.23 has a SwiGLU of its own (opset 28), and onnx.reference,
    which onnxscript's rewriter imports, refuses to load once two domains share an operator name there. The
    body makes files valid without.
    """
    if plugin.key in _PLUGINS:
        raise ValueError(f"plugin {plugin.key} is already registered")
    _PLUGINS[plugin.key] = plugin
    return plugin


def find_plugin(domain: str, name: str, version: int) -> Plugin:
    """The plugin with this key; UsageError lists those that exist."""
    try:
        return _PLUGINS[domain, name, version]
    except KeyError:
        raise UsageError(
            f"operator {domain}::{name} version {version}",
            found="no such operator",
            fix=f"Known: {', '.join(f'{d}::{n} version {v}' for d, n, v in _PLUGINS)}",
        ) from None


def plugin_named(name: str) -> Plugin:
    """The plugin `blockforge::<name>` of this version; UsageError lists those that exist."""
    return find_plugin(DOMAIN, name, DOMAIN_VERSION)


def registered() -> tuple[Plugin, ...]:
    """Every plugin, in the order of registration."""
    return tuple(_PLUGINS.values())


def load_operator(path: str | Path) -> Plugin:
    """The PLUGIN of an operator file that lives outside this folder; `register` makes it known.

    Its relative imports resolve as if it were here. UsageError when the file has no PLUGIN.
    """
    path = Path(path)
    spec = spec_from_file_location(f"{__package__}.{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"operator file {path}", found="no Python file", fix="Name a .py file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if not isinstance(plugin := getattr(module, "PLUGIN", None), Plugin):
        raise UsageError(
            f"operator file {path}", found="no PLUGIN in it", fix="Set PLUGIN = Plugin(...)"
        )
    return plugin
