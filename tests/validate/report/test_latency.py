"""Latencies on the page: those of the bundle's own record, in figures that scale with it, marked where they are old."""

import hashlib
import re

import pytest

from blockforge.core.errors import ArtefactError
from blockforge.validate.report import write_report

from .latencies import bench
from .pages import manifest, variant, written


def test_no_record_no_section(tmp_path):
    _, page, text = written(tmp_path, manifest())
    assert "latency" not in [a.get("id") for _, a in page.tags] and "bench.json" not in text


def test_sides_sizes_limits_and_what_was_not_measured(tmp_path):
    _, page, text = written(tmp_path, manifest(bench=bench(tmp_path)))
    assert "Rounds at batch 1, sequence 16." in text and "Rounds at batch 1, sequence 128." in text
    assert "median of fp32 onnxruntime:cpu at batch 1, sequence 16, ms, is 1.1696" in text
    assert "0.748× (0.731× to 0.772×)" in text and "faster" in text
    assert "fp16 tensorrt-rtx:sm89 was not measured: running an engine needs its GPU" in text
    assert "Of roofline" not in text
    assert len(page.all("svg")) == 12 + 4  # two sizes, wide and narrow


def test_rooflines_are_drawn_where_a_gpu_computed(tmp_path):
    path = bench(tmp_path, rooflines=(0.61, None))
    html, page, text = written(tmp_path, manifest(variant(verdicts=()), bench=path), figures=True)
    assert "Of roofline" in text and ("0.61", "61.00 %") in page.data
    assert len(page.all("svg")) == 4 + 2
    svg = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)[-2]
    assert (
        svg.count("onnxruntime:cpu") == 2 and "eager" not in svg
    )  # both sizes of the one that has it


def test_an_engine_built_again_is_said_to_be_older(tmp_path):
    model = tmp_path / "fp32/model.onnx"
    model.parent.mkdir()
    model.write_bytes(b"graph")
    known = hashlib.sha256(b"graph").hexdigest()
    same = manifest(variant("fp32"), bench=bench(tmp_path, files={"fp32 onnxruntime:cpu": known}))
    assert "built again" not in written(tmp_path, same)[2]
    model.write_bytes(b"another")
    assert "fp32 onnxruntime:cpu has been built again since" in written(tmp_path, same)[2]


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": 1}'])
def test_a_damaged_record(tmp_path, text):
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(ArtefactError, match="latencies"):
        write_report(tmp_path, manifest(variant(verdicts=()), bench="bench.json"))
