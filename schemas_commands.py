"""What the commands about graphs, targets, trust and serving print with --json, as types for schemas.py."""

from types import GenericAlias
from typing import Any

from pydantic import create_model

from .core.records import Record
from .validate.derived_record import record_of


class SignBody(Record):
    """What sign prints: the path of the signature."""

    bundle: str
    signature: str


class VerifyBody(Record):
    """What verify prints; files: how many fit their hashes; trusted: the keys that were given."""

    bundle: str
    files: int
    signed: bool
    trusted: tuple[str, ...]


class ServeBody(Record):
    """What serve prints once it answers."""

    url: str


class PtxBody(Record):
    """What plugins --ptx prints: the kernel's text."""

    operator: str
    arch: int
    ptx: str


class CacheRow(Record):
    """One engine of the cache; last_used: seconds since 1970; fault: what did not match, for verify."""

    entry: str
    bytes: int
    last_used: float
    parts: dict[str, str]
    fault: str | None


def rows_of(kind: Any) -> Any:
    """The type of any number of rows of `kind`."""
    return GenericAlias(tuple, (kind, ...))


def _made(name: str, doc: str, **kinds: Any) -> Any:
    made: dict[str, Any] = {field: (kind, ...) for field, kind in kinds.items()}
    return create_model(name, __base__=Record, __doc__=doc, **made)


def quantize_body() -> Any:
    """What quantize prints."""
    from .export.precision import report as typed
    from .export.quantize import report as quantized
    from .export.search.ranking import Budget
    from .export.search.search import Choice, SearchReport

    finite = float | None
    headroom = record_of(typed.Headroom, changed={"before": finite, "after": finite})
    change = record_of(typed.Change)
    typing = record_of(
        typed.PrecisionReport,
        changed={
            "streams": rows_of(record_of(typed.Scaled)),
            "by_channel": GenericAlias(dict, (str, rows_of(record_of(typed.ByChannel)))),
            "migrated": rows_of(record_of(typed.Migrated)),
            "attributes": rows_of(change),
            "masks": rows_of(change),
            "islands": rows_of(record_of(typed.Wide)),
            "headroom": rows_of(headroom),
            "nonfinite": rows_of(record_of(typed.NonFinite)),
        },
    )
    quantization = record_of(
        quantized.QuantizeReport,
        changed={
            "num_linears": int,
            "num_quantized": int,
            "share_of_flops": float,
            "linears": rows_of(record_of(quantized.LinearRecord)),
            "caches": rows_of(record_of(quantized.CacheRecord)),
        },
    )
    search = record_of(
        SearchReport,
        changed={"budget": record_of(Budget), "choices": rows_of(record_of(Choice))},
        without=("quantize",),
    )
    return _made(
        "QuantizeBody",
        "What quantize prints; null: not asked for, or there before.",
        typing=typing | None,
        quantization=quantization | None,
        search=search | None,
    )


def fuse_body() -> Any:
    """What fuse prints: instances of each pattern, then what was done."""
    from .export.fusions.match import Refusal
    from .export.fusions.report import PATTERNS, Fused, FusionReport

    changed = dict.fromkeys(PATTERNS, int) | {
        "fused": rows_of(record_of(Fused)),
        "refused": rows_of(record_of(Refusal)),
        "opset": tuple[int, int],
        "nodes": tuple[int, int],
    }
    without = ("counts", "opset_before", "opset_after", "nodes_before", "nodes_after")
    return record_of(FusionReport, changed=changed, without=without)


def preflight_body() -> Any:
    """What preflight prints of one target."""
    from .engines.preflight.finding import Finding, Report

    finding = record_of(Finding, changed={"fails": bool})
    return record_of(Report, changed={"passed": bool, "findings": rows_of(finding)})


def dry_run_body() -> Any:
    """What compile --dry-run prints of one engine."""
    from .engines.compile import DryRun

    return record_of(DryRun, changed={"precision": str, "preflight": preflight_body()})


def build_outlook_body() -> Any:
    """What build --dry-run prints."""
    from .build_outlook import BuildOutlook, GraphOutlook
    from .engines.outlook import Outlook

    engine = record_of(Outlook, changed={"precision": str})
    changed = {"graphs": rows_of(record_of(GraphOutlook)), "engines": rows_of(engine)}
    return record_of(BuildOutlook, changed=changed)


def cost_body() -> Any:
    """What cost prints: the prefill's numbers, and the decoding pass."""
    from .model.cost.result import Cost, Row

    row = record_of(
        Row,
        changed={
            "name": str,
            "moved_bytes": int,
            "intensity": float,
            "seconds": float,
            "bound": str,
        },
    )
    whole = ("parameters", "flops", "needed_flops", "weight_bytes", "activation_bytes")
    counts = dict.fromkeys((*whole, "moved_bytes", "gpu_memory_bytes"), int)
    changed = counts | {
        "gpu": str,
        "fits": bool,
        "seconds": float,
        "tokens_per_second": float,
        "rows": rows_of(row),
    }
    more = {
        "preset": str,
        "decode": record_of(Cost, changed=changed) | None,
        "compute_bound_batch": dict[str, int | None],
    }
    return record_of(Cost, changed=changed | more)


def plugins_body() -> Any:
    """What plugins prints: every operator, or with --ptx one kernel."""
    from .plugins.listing import Listing

    return rows_of(record_of(Listing)) | PtxBody


def cache_body() -> Any:
    """What cache prints; the rows stand under the action's name."""
    ls, prune, verify = (
        _made(
            f"Cache{action.capitalize()}",
            "The cache after the action, and the engines that it showed or removed.",
            **{"folder": str, "max_bytes": int, "bytes": int, action: tuple[CacheRow, ...]},
        )
        for action in ("ls", "prune", "verify")
    )
    return ls | prune | verify


def pack_body() -> Any:
    """What pack prints: the models that were written."""
    from .engines.serving.triton_repository import PackedModel

    model = record_of(PackedModel, changed={"path": str})
    return _made("PackBody", "The models that pack wrote.", format=str, models=rows_of(model))
