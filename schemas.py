"""JSON Schemas of what commands print with --json, and of a bundle's manifest, made from the types that write them."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from . import schemas_commands as more
from .core.errors import UsageError
from .core.manifest import Manifest
from .core.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class BundleBody(Record):
    """What build, export, compile and validate print of a bundle; passed: no limit was missed."""

    bundle: str
    passed: bool
    manifest: Manifest


class ReportBody(Record):
    """What report prints: the path of the page."""

    report: str


class ErrorFields(Record):
    """What was asked, what stood in the way, and what would work."""

    asked: str
    found: str
    fix: str


class ErrorBody(Record):
    """What any command prints instead where it ends with an error."""

    error: ErrorFields
    exit_code: int


class OutputRow(Record):
    """One output tensor of `run`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    min: float
    mean: float
    max: float


class FindingRow(Record):
    """One thing that doctor looked at."""

    name: str
    status: Literal["ok", "missing", "problem"]
    detail: str
    fix: str


class EdgeRow(Record):
    """A tensor at a kernel's edge: dims in elements, -1 where dynamic."""

    name: str
    dtype: str
    dims: tuple[int, ...]


class KernelRow(Record):
    """One planned kernel."""

    name: str
    type: str
    inputs: tuple[EdgeRow, ...]
    constants: tuple[EdgeRow, ...]
    outputs: tuple[EdgeRow, ...]
    tactic: str
    stream: int
    nodes: tuple[str, ...]
    dtype: str
    on_device: bool


class PlanBody(Record):
    """The kernels of one engine that inspect shows."""

    engine: str
    runtime: str
    source: Literal["builder", "profiler"]
    num_blocks: int
    options: dict[str, Any]
    device_kernels: int | None
    kernels_per_block: float | None
    dtypes: dict[str, int]
    block: int | None
    kernels: tuple[KernelRow, ...]


class PlanFacts(Record):
    """What diff-plan says of one engine."""

    target: str
    runtime: str
    kernels: int | None
    kernels_per_block: float | None
    dtypes: dict[str, int]


class PlannedRow(Record):
    """One kernel that diff-plan names."""

    name: str
    type: str
    dtype: str
    tactic: str
    nodes: tuple[str, ...]


class RegroupedRow(Record):
    """Kernels of both that cover some of the same nodes in other groups."""

    a: tuple[PlannedRow, ...]
    b: tuple[PlannedRow, ...]


class ChangeRow(Record):
    """What two matched kernels differ in; where: an edge, "" for the kernel itself."""

    aspect: Literal["type", "dtype", "shape", "tactic"]
    where: str
    a: str
    b: str


class ChangedRow(Record):
    """Two kernels that cover the same nodes."""

    nodes: tuple[str, ...]
    changes: tuple[ChangeRow, ...]


class PlanDiffBody(Record):
    """What diff-plan prints; pairs of counts are of a and of b."""

    equal: bool
    identical: bool
    a: PlanFacts
    b: PlanFacts
    added: tuple[PlannedRow, ...]
    removed: tuple[PlannedRow, ...]
    regrouped: tuple[RegroupedRow, ...]
    changed: tuple[ChangedRow, ...]
    unchanged: int
    dtypes: dict[str, tuple[int, int]]
    other: dict[str, tuple[int, int]]


class ArrayRow(Record):
    """Type and shape of one array."""

    dtype: str
    shape: tuple[int, ...]


class RunnerRow(Record):
    """One runner of Polygraphy's results; outputs: of its first iteration."""

    runner: str
    iterations: int
    median_seconds: float | None
    outputs: dict[str, ArrayRow]


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of `name`: a command, "manifest" or "error". UsageError lists what there is."""
    make = _TYPES.get(name)
    if make is None:
        raise UsageError(
            f"schema of {name!r}", found="there is none", fix=f"Name {', '.join(_TYPES)}"
        )
    schema = TypeAdapter(make()).json_schema(mode="serialization", schema_generator=_Schema)
    return {"$schema": DIALECT, "title": f"blockforge {name}"} | schema


class _Schema(GenerateJsonSchema):
    """Numbers that are not finite are strings, as everywhere in our JSON."""

    def float_schema(self, schema: core_schema.FloatSchema) -> dict[str, Any]:
        """A number, or the name of one that JSON lacks."""
        return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}


def _diff() -> Any:
    from .validate.divergence.record import DiffBody

    return DiffBody


def _bench() -> Any:
    from .validate.latency import BenchRecord

    return BenchRecord


def _polygraphy() -> Any:
    from pydantic import create_model

    from .validate.polygraphy.results import JudgedResults

    return create_model(
        "PolygraphyBody",
        __base__=Record,
        __doc__="What import-polygraphy prints; saved: where the outputs went.",
        runners=(tuple[RunnerRow, ...], ...),
        saved=(str | None, ...),
        verdict=(JudgedResults | None, ...),
    )


def _compile() -> Any:
    """A bundle, or with --dry-run what would be built."""
    return BundleBody | more.rows_of(more.dry_run_body())


_TYPES: "dict[str, Callable[[], Any]]" = {
    "manifest": lambda: Manifest,
    **dict.fromkeys(("export", "validate"), lambda: BundleBody),
    "build": lambda: BundleBody | more.build_outlook_body(),
    "compile": _compile,
    "report": lambda: ReportBody,
    "inspect": lambda: tuple[PlanBody, ...],
    "diff-plan": lambda: PlanDiffBody,
    "run": lambda: tuple[OutputRow, ...],
    "diff": _diff,
    "bench": _bench,
    "import-polygraphy": _polygraphy,
    "doctor": lambda: tuple[FindingRow, ...],
    "quantize": more.quantize_body,
    "fuse": more.fuse_body,
    "preflight": lambda: more.rows_of(more.preflight_body()),
    "cache": more.cache_body,
    "cost": more.cost_body,
    "plugins": more.plugins_body,
    "pack": more.pack_body,
    "serve": lambda: more.ServeBody,
    "sign": lambda: more.SignBody,
    "verify": lambda: more.VerifyBody,
    "error": lambda: ErrorBody,
}
