"""Manifests and layers files for the report's tests, and a reader of the page that it writes."""

import contextlib
from html.parser import HTMLParser

from blockforge.core.evidence import (
    ElementRecord,
    ElementsRecord,
    GreedyRecord,
    SeedsRecord,
    UnderflowRecord,
)
from blockforge.core.manifest import (
    EngineRecord,
    ErrorRecord,
    GateRecord,
    Manifest,
    RangeRecord,
    TensorRecord,
    VariantRecord,
    VerdictRecord,
)
from blockforge.engines.kernel import Kernel, TensorInfo
from blockforge.engines.layers_file import LayersFile, save_layers
from blockforge.validate.report import write_report

from ..conftest import no_figures

HOSTILE = "<script>alert('x')</script> & \"$\\frac{1}{2}$\" </style>"


def seen(case="text"):
    """What a judged verdict shows beyond its limits."""
    edges = ("0.5", "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "more")
    counts = (5011, 2903, 1207, 411, 37, 3, 0, 0, 0, 0, 0, 0, 0)
    worst = [
        ElementRecord(
            case=case,
            index=(0, 17, 4211),
            actual=12.26234,
            expected=12.25821,
            error=0.00413,
            ulps=1.057,
        ),
        ElementRecord(
            case=case, index=(0, 3, 77), actual=1.5, expected=1.4961, error=0.0039, ulps=None
        ),
    ]
    return {
        "elements": (
            ElementsRecord(
                output="logits",
                dtype="fp16",
                ulps=dict(zip(edges, counts, strict=True)),
                floor_ulps=dict(zip(edges, reversed(counts), strict=True)),
                worst=tuple(worst),
            ),
        ),
        "seeds": (SeedsRecord(output="logits", seeds=5, ratio=1.0171, interval=(0.9713, 1.0622)),),
        "greedy": GreedyRecord(
            case=case, position=(0, 133), expected=11907, actual=262, margin=0.00317
        ),
        "floor_greedy": GreedyRecord(
            case=case, position=(0, 291), expected=31, actual=29, margin=0.00119
        ),
        "underflow": (
            UnderflowRecord(
                value="layers.2.mlp.act", node="layers.2.mlp/SwiGLU", count=815, elements=196608
            ),
        ),
        "underflow_by_layer": {"layers.1": 12, "layers.2": 823, "": 4},
    }


def verdict(runner="typed-evaluator", *, judged=True, passed=True, case="text", ratio=1.0213):
    gate = GateRecord(
        name="logits: error over floor", value=ratio, relation="<=", limit=2.0, passed=passed
    )
    error = ErrorRecord(
        output="logits",
        case=case,
        max_abs=0.00412817,
        mean_abs=0.000512893,
        cosine=0.99999987,
        floor_max_abs=0.00398765,
        floor_mean_abs=0.000498771,
        ratio=ratio,
        worst_index=(0, 17, 4211),
        worst_actual=12.262345,
        worst_expected=12.258217,
    )
    evidence = {} if not judged else seen(case)
    return VerdictRecord(
        **evidence,
        runner=runner,
        passed=passed,
        judged=judged,
        outputs=(error,),
        gates=(gate,) if judged else (),
        layer_names=("layers.0", "layers.1", "layers.2"),
        layer_errors=(0.00021, 0.00034, 0.00055),
        layer_floors=(0.00020, 0.00035, 0.00052),
        perplexity=24.36712,
        reference_perplexity=24.36301,
        token_agreement=0.994141,
        kl_divergence=2.17e-06,
        floor_perplexity=24.36655,
        floor_token_agreement=0.992188,
        floor_kl_divergence=2.29e-06,
        peaks={"layers.2": 20412.5},
    )


def engine(target="tensorrt-rtx:sm89", precision="fp16", **other):
    slug = target.replace(":", "-")
    plan = None if target.startswith("onnxruntime") else f"{precision}/engines/{slug}.plan"
    values = {
        "target": target,
        "runtime": "tensorrt-rtx 1.7.1",
        "path": plan,
        "layers": f"{precision}/engines/{slug}.layers.json",
        "bytes": 271400212,
        "build_seconds": 14.231,
        "kernels": 334 if plan else None,
        "kernels_per_block": 11.0 if plan else None,
        "dtypes": {precision: 333, "int64": 1},
    }
    return EngineRecord(**(values | other))


def variant(precision="fp16", **other):
    values = {
        "precision": precision,
        "model": f"{precision}/model.onnx",
        "opset": 24,
        "inputs": (TensorRecord(name="input_ids", dtype="int64", dims=("batch", "sequence")),),
        "outputs": (TensorRecord(name="logits", dtype="fp32", dims=("batch", "sequence", 49152)),),
        "profile": {"input_ids": RangeRecord(min=(1, 1), opt=(1, 128), max=(4, 1024))},
        "operators": {"MatMul": 211, "blockforge::SwiGLU": 30},
        "dtypes": {precision: 702, "int64": 4},
        "num_blocks": 3,
        "engines": (engine("onnxruntime:cpu", precision), engine(precision=precision)),
        "verdicts": (verdict(), verdict("onnxruntime:cpu", judged=False)),
    }
    return VariantRecord(**(values | other))


def manifest(*variants, **other):
    values = {
        "name": "smollm2-135m",
        "created": "2026-11-29T22:01:00+00:00",
        "recipe": {"name": "smollm2-135m", "validate": {"limits": {"max_error_over_floor": 2.0}}},
        "tools": {"blockforge": "0.1.0", "torch": "2.13.0"},
        "machine": {"system": "Linux"},
        "variants": variants or (variant("fp32"), variant()),
    }
    return Manifest(**(values | other))


def save_kernels(folder, precision="fp16", blocks=3):
    """Layers files with two kernels a block, a wait, and one kernel that TensorRT put around them."""
    edge = TensorInfo("x", precision, (-1, 576))
    kernels = [Kernel(name="first", type="kgen", outputs=(edge,), nodes=("Gather",))]
    for b in range(blocks):
        for kind, node in (("kgen", "input_layernorm/RMSNormalization"), ("gemm", "mlp/MatMul")):
            nodes = (f"layers.{b}.{node}",)
            kernels.append(
                Kernel(name=kind, type=kind, inputs=(edge,), outputs=(edge,), nodes=nodes)
            )
        kernels.append(Kernel(name="wait", type="wait", inputs=(edge,), outputs=(edge,)))
    path = folder / f"{precision}/engines/tensorrt-rtx-sm89.layers.json"
    path.parent.mkdir(parents=True)
    layers = LayersFile(
        target="tensorrt-rtx:sm89",
        runtime="tensorrt-rtx 1.7.1",
        source="builder",
        num_blocks=blocks,
        kernels=tuple(kernels),
    )
    save_layers(layers, path)
    return path


class Page(HTMLParser):
    """Tags with attributes, text, and the numbers of a page."""

    VOID = frozenset({"meta", "br", "path", "use", "rect"})

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.data, self.open = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] == "data":
            self.data.append((self.tags[-1][1]["value"], data))

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def written(tmp_path, record, *, figures=False):
    """(text, Page, words) of the report. figures: draw them."""
    with contextlib.nullcontext() if figures else no_figures():
        html = write_report(tmp_path, record).read_text(encoding="utf-8")
    page = Page(html)
    assert not page.open, page.open
    return html, page, " ".join("".join(page.text).split())


def numbers_of(value):
    """Every number in nested JSON."""
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers_of(v)]
    if isinstance(value, list):
        return [n for v in value for n in numbers_of(v)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []
