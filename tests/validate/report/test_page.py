"""The page: every number is the manifest's, nothing is loaded from elsewhere, hostile names stay text."""

import json
import math
import re
import tomllib

import pytest

from blockforge.core.errors import ArtefactError
from blockforge.validate.report import write_report
from blockforge.validate.report.numbers import exact

from .latencies import bench
from .pages import (
    HOSTILE,
    engine,
    manifest,
    numbers_of,
    save_kernels,
    variant,
    verdict,
    written,
)


def test_every_number_is_the_manifests(tmp_path):
    record = manifest(bench=bench(tmp_path))
    _, page, _ = written(tmp_path, record)
    stored = [
        json.loads(record.model_dump_json()),
        json.loads((tmp_path / "bench.json").read_text()),
    ]
    known = {exact(n) for n in numbers_of(stored)}
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
            for found in item.elements:
                wanted += [*found.ulps.values(), *found.floor_ulps.values()]
                for worst in found.worst:
                    wanted += [worst.actual, worst.expected, worst.error]
                    wanted += [] if worst.ulps is None else [worst.ulps]
            for found in item.seeds:
                wanted += [found.seeds, found.ratio, *found.interval]
            for lost in item.underflow:
                wanted += [lost.count, lost.elements]
            wanted += item.underflow_by_layer.values()
            for at in (item.greedy, item.floor_greedy):
                wanted += [] if at is None else [at.expected, at.actual, at.margin]
            assert {exact(n) for n in wanted} <= shown
        for item in part.engines:
            wanted = [item.bytes, item.build_seconds, *item.dtypes.values()]
            assert {exact(n) for n in wanted} <= shown
            assert item.kernels is None or exact(item.kernels) in shown


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """(text, Page, words) of a page with every figure."""
    folder = tmp_path_factory.mktemp("drawn")
    save_kernels(folder)
    return written(folder, manifest(bench=bench(folder)), figures=True)


def test_the_page_loads_nothing(drawn):
    html, page, _ = drawn
    assert (
        "http:" not in html and "https:" not in html and "//" not in re.sub(r"/\*.*?\*/", "", html)
    )
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert "xmlns" not in html and "xlink" not in html
    assert "@import" not in html and not re.search(r"url\((?!#)", html)
    for _, attrs in page.tags:
        assert attrs.get("href", "#").startswith("#") and "src" not in attrs


def test_ids_are_unique_and_references_resolve(drawn):
    html, page, _ = drawn
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    used = {a["href"].removeprefix("#") for _, a in page.tags if "href" in a}
    used |= set(re.findall(r"url\(#([^)]*)\)", html))
    used |= {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert used <= set(ids)


def test_figures_follow_the_page_in_light_and_dark(drawn):
    html, page, _ = drawn
    figures = page.all("svg")
    # wide and narrow: three figures for each precision, the kernels of one engine, latencies at two sizes
    assert len(figures) == 2 * (2 * 3 + 1 + 2)
    assert all(f["role"] == "img" and f["aria-label"] for f in figures)
    for svg in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        assert not re.findall(r"#[0-9a-f]{6}\b", svg), "a colour that dark mode cannot change"
        assert "flow" in svg[:40] or "var(--plot-first)" in svg
    assert "prefers-color-scheme: dark" in html


def hostile_evidence():
    """Every name in the evidence of a verdict, replaced."""
    found = verdict(case=HOSTILE)
    return {
        "elements": tuple(e.model_copy(update={"output": HOSTILE}) for e in found.elements),
        "seeds": tuple(s.model_copy(update={"output": HOSTILE}) for s in found.seeds),
        "underflow": tuple(
            u.model_copy(update={"value": HOSTILE, "node": HOSTILE}) for u in found.underflow
        ),
    }


def test_hostile_names_stay_text(tmp_path):
    bad = verdict(runner=HOSTILE, case=HOSTILE).model_copy(
        update={
            "notes": (HOSTILE,),
            "overflow": (HOSTILE,),
            "peaks": {HOSTILE: 1.0},
            "layer_names": (HOSTILE, "layers.1", "layers.2"),
            "underflow_by_layer": {HOSTILE: 1},
        }
        | hostile_evidence()
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
    html, page, text = written(tmp_path, record, figures=True)
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
