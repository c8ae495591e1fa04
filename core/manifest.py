"""The manifest of a bundle: everything that someone who receives the folder needs to know, as typed JSON."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, ValidationError

from .conversion import QuantizationRecord, TypingRecord
from .errors import ArtefactError, UsageError
from .evidence import ElementsRecord, GreedyRecord, SeedsRecord, UnderflowRecord
from .records import DTypeName, PrecisionName, Record
from .shapes import Profile, ShapeRange

SCHEMA_VERSION: Literal[1] = 1
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class FileRecord(Record):
    """Size in bytes and SHA-256 of one file."""

    bytes: int
    sha256: Sha256


class TensorRecord(Record):
    """An input or output: dims are sizes or the names of dynamic axes.

    below: whole numbers lie in [0, below); None where nothing is known of them.
    """

    name: str
    dtype: DTypeName
    dims: tuple[int | str, ...]
    below: int | None = None


class RangeRecord(Record):
    """The optimisation profile of one input."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


class EngineRecord(Record):
    """One compiled engine.

    path is None where the target runs the ONNX file itself. kernels counts device kernels;
    kernels_per_block is their median over the model's blocks (None where it has none).
    """

    target: str
    runtime: str  # e.g. "tensorrt-rtx 1.7.1"
    path: str | None
    layers: str | None
    bytes: int
    build_seconds: float
    kernels: int | None = None
    kernels_per_block: float | None = None
    dtypes: dict[str, int] = Field(default_factory=dict)  # dtype name -> kernels computing in it
    legalized: tuple[str, ...] = ()  # what engines/legalize changed, one line each
    plugins: tuple[str, ...] = ()  # blockforge operators: plugin or function body, and why
    options: dict[str, Any] = Field(default_factory=dict)  # of the builder, where not the default
    violations: tuple[str, ...] = ()  # kernels in another type than the graph's, and unmet demands

    def under(self, folder: str) -> Self:
        """The same record with paths that start one folder higher: `engines/x.plan` -> `fp16/engines/x.plan`."""
        paths = {"path": self.path, "layers": self.layers}
        moved = {key: f"{folder}/{path}" for key, path in paths.items() if path is not None}
        return self.model_copy(update=moved)


class ErrorRecord(Record):
    """How far one output lies from the float64 truth, beside what PyTorch loses in the same dtype."""

    output: str
    max_abs: float
    mean_abs: float
    cosine: float
    floor_max_abs: float
    floor_mean_abs: float
    ratio: float  # rms error over the floor's rms error
    worst_index: tuple[int, ...]
    worst_actual: float
    worst_expected: float
    nonfinite: int = 0  # elements that are NaN or infinite where the truth is finite
    case: str = ""  # which inputs


class GateRecord(Record):
    """One limit of the recipe: passed or not. `relation` reads value <relation> limit."""

    name: str
    value: float
    relation: Literal["<=", ">="]
    limit: float
    passed: bool


class VerdictRecord(Record):
    """What one way of running a variant computes, judged against the float64 reference.

    runner: "typed-evaluator" or the name of the target that really ran. layer_errors: by layer output,
    the root mean square over positions of the error relative to the position's own size. floor_*: the same measure of PyTorch in
    floor_dtype, which is the variant's own unless PyTorch itself is not finite in it. judged False: a second opinion, recorded without a gate (passed is then True).
    greedy: None where no token differs, or there are none. underflow: the values that lost the largest shares to
    zero; underflow_by_layer: elements of all of them, "" outside the layers.
    """

    runner: str
    passed: bool
    judged: bool = True
    outputs: tuple[ErrorRecord, ...]
    gates: tuple[GateRecord, ...]
    layer_names: tuple[str, ...] = ()
    layer_errors: tuple[float, ...] = ()
    layer_floors: tuple[float, ...] = ()
    floor_dtype: DTypeName | None = None
    perplexity: float | None = None
    reference_perplexity: float | None = None
    token_agreement: float | None = None  # share of positions with the same greedy token
    kl_divergence: float | None = None  # mean over positions, truth against candidate, in nats
    kl_interval: tuple[float, float] | None = None  # 95 %, by bootstrap over positions
    perplexity_ratio: float | None = None  # perplexity over the reference's
    perplexity_ratio_interval: tuple[float, float] | None = None  # 95 %, paired
    top5_agreement: float | None = None  # share of the reference's five likeliest tokens
    floor_perplexity: float | None = None
    floor_token_agreement: float | None = None
    floor_kl_divergence: float | None = None
    greedy: GreedyRecord | None = None
    floor_greedy: GreedyRecord | None = None
    elements: tuple[ElementsRecord, ...] = ()
    seeds: tuple[SeedsRecord, ...] = ()
    overflow: tuple[str, ...] = ()  # values that left the finite range of their dtype
    underflow: tuple[UnderflowRecord, ...] = ()
    underflow_by_layer: dict[str, int] = Field(default_factory=dict)
    peaks: dict[str, float] = Field(default_factory=dict)  # the largest magnitudes, by value
    notes: tuple[str, ...] = ()


def range_records(profile: Profile) -> dict[str, RangeRecord]:
    """A profile as the manifest holds it; VariantRecord.profiles is the way back."""
    return {name: RangeRecord(min=r.min, opt=r.opt, max=r.max) for name, r in profile.items()}


class VariantRecord(Record):
    """The graph in one precision, with its engines and verdicts.

    precision: its name in the recipe and the folder it lies in. packed: weight -> the checkpoint's tensors that lie in it
    side by side, along the output axis. profile: the sizes of every input; more_profiles: further ones that engines are
    tuned for, in their order.
    """

    precision: PrecisionName
    typing: TypingRecord | None = None
    quantization: QuantizationRecord | None = None
    model: str  # path of the ONNX file in the bundle
    opset: int
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    profile: dict[str, RangeRecord]
    more_profiles: tuple[dict[str, RangeRecord], ...] = ()
    operators: dict[str, int]  # operator -> nodes
    dtypes: dict[str, int]  # dtype name -> values
    num_blocks: int
    packed: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    engines: tuple[EngineRecord, ...] = ()
    verdicts: tuple[VerdictRecord, ...] = ()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Every optimisation profile, the first one first."""
        return tuple(
            {name: ShapeRange(r.min, r.opt, r.max) for name, r in profile.items()}
            for profile in (self.profile, *self.more_profiles)
        )

    @property
    def computes(self) -> DTypeName:
        """The type of everything that is not quantised."""
        if self.quantization is not None:
            return self.quantization.base
        assert self.precision in ("fp32", "fp16", "bf16"), "a quantised variant says how"
        return self.precision


class Manifest(Record):
    """The whole manifest; see the module text."""

    schema_version: Literal[1] = SCHEMA_VERSION
    name: str
    created: str  # ISO 8601, UTC
    recipe: dict[str, Any]
    tools: dict[str, str]  # package -> version
    machine: dict[str, str] = Field(default_factory=dict)
    variants: tuple[VariantRecord, ...]
    golden: str | None = None  # path of the seeded inputs and reference outputs
    bench: str | None = None  # path of the latencies that `bench --save` measured
    report: str | None = None
    files: dict[str, FileRecord] = Field(default_factory=dict)  # filled when the bundle is sealed

    @property
    def references(self) -> tuple[str, ...]:
        """Every path in the bundle that the manifest names outside `files`."""
        paths = [self.golden, self.bench, self.report]
        for variant in self.variants:
            paths.append(variant.model)
            paths += [p for engine in variant.engines for p in (engine.path, engine.layers)]
        return tuple(p for p in paths if p is not None)

    @property
    def failures(self) -> tuple[str, ...]:
        """One line per missed limit, per kernel in another type than its graph declares, and per unmet demand."""
        lines = [
            f"{variant.precision}, {verdict.runner}: {gate.name} is {gate.value:.6g}, "
            f"the limit is {gate.relation} {gate.limit:g}"
            for variant in self.variants
            for verdict in variant.verdicts
            for gate in verdict.gates
            if not gate.passed
        ]
        lines += [
            f"{variant.precision}, {engine.target}: {violation}"
            for variant in self.variants
            for engine in variant.engines
            for violation in engine.violations
        ]
        return tuple(lines)

    def variant(self, precision: str | None = None) -> VariantRecord:
        """The variant in `precision`, None for the first; UsageError lists what the bundle has."""
        for variant in self.variants:
            if precision in (None, variant.precision):
                return variant
        has = ", ".join(v.precision for v in self.variants) or "none"
        raise UsageError(
            f"precision {precision!r}",
            found=f"the bundle has {has}",
            fix="Name one of them, or build it: [export] precisions",
        )


def manifest_from_json(text: str, path: str) -> Manifest:
    """Read a manifest; ArtefactError says which field does not fit."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ArtefactError(
            f"manifest {path}",
            found=f"{where}: {first['msg']}",
            fix=f"This version reads schema {SCHEMA_VERSION}: build the bundle again",
        ) from None
