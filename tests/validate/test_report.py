"""The page: every number is the manifest's, nothing is loaded from elsewhere, hostile names stay text."""

import json
import math
import re
import shutil
import subprocess
import tomllib
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockforge.core.errors import ArtefactError
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
from blockforge.validate.report.numbers import exact, number, short
from blockforge.validate.report.toml import toml_from_dict

HOSTILE = "<script>alert('x')</script> & \"$\\frac{1}{2}$\" </style>"


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
    return VerdictRecord(
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


def written(tmp_path, record):
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


def test_every_number_is_the_manifests(tmp_path):
    record = manifest()
    _, page, _ = written(tmp_path, record)
    known = {exact(n) for n in numbers_of(json.loads(record.model_dump_json()))}
    known |= {repr(float(n)) for n in known} | {n.removesuffix(".0") for n in known}
    assert len(page.data) > 80
    for value, _ in page.data:
        assert value in known, value


def test_what_is_read_is_what_is_stored(tmp_path):
    """The visible text of a number is its stored value, to the digits shown."""
    _, page, _ = written(tmp_path, manifest())
    scale = {"%": 0.01, "KB": 1e3, "MB": 1e6, "GB": 1e9}
    for value, text in page.data:
        plain = text.replace("−", "-").replace(",", "").replace("×", "").replace(" s", "")
        first, _, unit = plain.partition(" ")
        shown = float(first) * scale.get(unit, 1)
        digits = len(re.sub(r"e.*|\D", "", first).lstrip("0")) or 1
        assert shown == pytest.approx(float(value), rel=0.51 * 10 ** (1 - digits), abs=1e-12), text


def test_all_verdict_and_engine_numbers_appear(tmp_path):
    record = manifest()
    _, page, _ = written(tmp_path, record)
    shown = {value for value, _ in page.data}
    for part in record.variants:
        for item in part.verdicts:
            wanted = [item.perplexity, item.reference_perplexity, item.token_agreement]
            wanted += [item.kl_divergence, item.floor_perplexity, item.floor_token_agreement]
            wanted += [*item.layer_errors, *item.layer_floors, *item.peaks.values()]
            wanted += [n for g in item.gates for n in (g.value, g.limit)]
            for e in item.outputs:
                wanted += [e.max_abs, e.mean_abs, e.cosine, e.ratio, e.floor_max_abs]
                wanted += [e.floor_mean_abs, e.worst_actual, e.worst_expected]
            assert {exact(n) for n in wanted} <= shown
        for item in part.engines:
            wanted = [item.bytes, item.build_seconds, *item.dtypes.values()]
            assert {exact(n) for n in wanted} <= shown
            assert item.kernels is None or exact(item.kernels) in shown


def test_the_page_loads_nothing(tmp_path):
    save_kernels(tmp_path)
    html, page, _ = written(tmp_path, manifest())
    assert (
        "http:" not in html and "https:" not in html and "//" not in re.sub(r"/\*.*?\*/", "", html)
    )
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert "xmlns" not in html and "xlink" not in html
    assert "@import" not in html and not re.search(r"url\((?!#)", html)
    for _, attrs in page.tags:
        assert attrs.get("href", "#").startswith("#") and "src" not in attrs


def test_ids_are_unique_and_references_resolve(tmp_path):
    html, page, _ = written(tmp_path, manifest())
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    used = {a["href"].removeprefix("#") for _, a in page.tags if "href" in a}
    used |= set(re.findall(r"url\(#([^)]*)\)", html))
    used |= {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert used <= set(ids)


def test_figures_follow_the_page_in_light_and_dark(tmp_path):
    html, page, _ = written(tmp_path, manifest())
    figures = page.all("svg")
    assert len(figures) == 8  # two figures, wide and narrow, for each precision
    assert all(f["role"] == "img" and f["aria-label"] for f in figures)
    for svg in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        assert not re.findall(r"#[0-9a-f]{6}\b", svg), "a colour that dark mode cannot change"
        assert "var(--plot-first)" in svg and "var(--plot-floor)" in svg
    assert "prefers-color-scheme: dark" in html


def test_hostile_names_stay_text(tmp_path):
    bad = verdict(runner=HOSTILE, case=HOSTILE).model_copy(
        update={
            "notes": (HOSTILE,),
            "overflow": (HOSTILE,),
            "peaks": {HOSTILE: 1.0},
            "layer_names": (HOSTILE, "layers.1", "layers.2"),
        }
    )
    part = variant(
        verdicts=(bad,),
        operators={HOSTILE: 1},
        engines=(engine(HOSTILE, legalized=(HOSTILE,), violations=(HOSTILE,), layers=None),),
    )
    record = manifest(
        part,
        name=HOSTILE,
        recipe={"name": HOSTILE, HOSTILE: {"a": HOSTILE}},
        tools={HOSTILE: HOSTILE},
    )
    html, page, text = written(tmp_path, record)
    assert not page.all("script")
    assert "<script" not in html
    assert " ".join(HOSTILE.split()) in text
    assert len(page.all("style")) == 1


def test_the_verdict_comes_first_and_says_what_was_not_run(tmp_path):
    _, page, text = written(tmp_path, manifest())
    assert text.index("The numbers hold") < text.index("Engines")
    assert "2 TensorRT plans compiled, not run here" in text
    assert "graph passes; plan compiled, not run here" in text
    assert "run here as a second opinion" in text
    assert "2 of 2 limits hold" in text
    assert page.all("section")[0]["class"] == "verdict pass"


def test_a_missed_limit_is_the_first_thing_read(tmp_path):
    missed = variant(verdicts=(verdict(passed=False, ratio=7.25),))
    _, page, text = written(tmp_path, manifest(missed))
    assert page.all("section")[0]["class"] == "verdict fail"
    assert (
        "1 limit missed" in text
        and "fp16, typed-evaluator: logits: error over floor is 7.25" in text
    )
    assert "graph FAILS; plan compiled, not run here" in text


def test_a_violation_of_dtypes_is_a_failure(tmp_path):
    wide = variant(engines=(engine(violations=("gemm computes in fp32",)),))
    _, page, text = written(tmp_path, manifest(wide))
    assert page.all("section")[0]["class"] == "verdict fail"
    assert "plan gemm computes in fp32" in text


def test_a_run_that_really_happened_is_called_that(tmp_path):
    ran = variant(
        "fp32", verdicts=(verdict(), verdict("onnxruntime:cpu"), verdict("tensorrt-rtx:sm89"))
    )
    _, _, text = written(tmp_path, manifest(ran))
    assert text.count("pass, run here") == 2
    assert "not run here" not in text


def test_a_bundle_without_verdicts_or_engines(tmp_path):
    bare = variant(verdicts=(), engines=())
    _, page, text = written(tmp_path, manifest(bare))
    assert page.all("section")[0]["class"] == "verdict none"
    assert "Not judged yet: fp16" in text and "No engine has been compiled." in text


def test_only_a_second_opinion_is_no_verdict(tmp_path):
    weak = variant(verdicts=(verdict("onnxruntime:cpu", judged=False),))
    _, page, _ = written(tmp_path, manifest(weak))
    assert page.all("section")[0]["class"] == "verdict none"


def test_numbers_that_are_not_finite(tmp_path):
    broken = verdict(passed=False, ratio=math.nan)
    broken = broken.model_copy(
        update={
            "outputs": (
                broken.outputs[0].model_copy(update={"max_abs": math.inf, "nonfinite": 3}),
            ),
            "layer_errors": (math.inf, math.nan, 0.1),
            "perplexity": math.nan,
        }
    )
    _, page, text = written(tmp_path, manifest(variant(verdicts=(broken,))))
    assert ("NaN", "NaN") in page.data and ("Infinity", "∞") in page.data
    assert "3 not finite" in text


def test_the_kernels_of_a_middle_block(tmp_path):
    save_kernels(tmp_path)
    _, page, text = written(tmp_path, manifest())
    assert "fp16 · tensorrt-rtx:sm89 · block 1" in text
    assert "layers.1.mlp/MatMul" in text and "layers.0.mlp/MatMul" not in text
    assert "wait (not a kernel)" in text
    assert [a for a in page.all("details") if "open" in a]


def test_a_damaged_layers_file(tmp_path):
    path = save_kernels(tmp_path)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(ArtefactError, match="kernels of"):
        write_report(tmp_path, manifest())


def test_the_recipe_can_be_read_back(tmp_path):
    record = manifest(recipe={"name": "a", "model": {"preset": "llama-tiny", "seed": 3}})
    html, _, _ = written(tmp_path, record)
    block = re.search(r"<pre>(.*?)</pre>", html, flags=re.DOTALL)[1]
    text = block.replace("&#34;", '"').replace("&lt;", "<").replace("&amp;", "&")
    assert tomllib.loads(text) == record.recipe


LEAVES = st.one_of(
    st.text(), st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False)
)
TABLES = st.recursive(
    st.dictionaries(st.text(max_size=8), LEAVES | st.lists(LEAVES, max_size=3), max_size=4),
    lambda inner: st.dictionaries(st.text(max_size=8), LEAVES | inner, max_size=4),
    max_leaves=6,
)


@given(TABLES)
def test_toml_reads_back(data):
    assert tomllib.loads(toml_from_dict(data)) == data


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.000412817, "sci", "4.13e−4"),
        (0.0, "sci", "0"),
        (1.0213, "ratio", "1.02×"),
        (123456.0, "ratio", "1.23e5×"),
        (0.994141, "share", "99.41 %"),
        (271400212, "bytes", "271 MB"),
        (999, "bytes", "999 B"),
        (14.231, "seconds", "14.2 s"),
        (75.4, "seconds", "1 min 15 s"),
        (1804, "count", "1,804"),
        (1.00017, "gate", "1.00017"),
        (-12.5, "general", "−12.5"),
        (math.nan, "general", "NaN"),
        (-math.inf, "sci", "−∞"),
    ],
)
def test_numbers_for_the_eye(value, kind, text):
    assert short(value, kind) == text
    assert str(number(value, kind)) == f'<data value="{exact(value)}">{text}</data>'


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_real_browser_lays_it_out_without_scrolling_sideways(tmp_path):
    """At 400 px nothing sticks out. A page of our own holds the report in a frame and measures it."""
    save_kernels(tmp_path)
    written(tmp_path, manifest())
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<iframe id=f src=report.html style='width:400px;height:800px'></iframe><script>"
        "f.onload = () => { const e = f.contentDocument.documentElement;"
        "const rows = [...e.querySelectorAll('caption')].map(c => c.offsetHeight);"
        "document.title = [e.scrollWidth, e.clientWidth, Math.max(...rows)]; }</script>"
    )
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    browser += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*browser, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r"<title>(\d+),(\d+),(\d+)</title>", done.stdout)
    inside, width, caption = map(int, found.groups())
    assert inside <= width <= 400
    assert caption < 100  # a few lines, not one word under the other
