"""What a verdict shows of single elements, seeds, tokens and zeros: in words and figures that say what was counted."""

import re

from blockforge.core.evidence import ElementsRecord
from blockforge.validate.report.ulps import bin_name, used

from .pages import manifest, seen, variant, verdict, written


def test_the_evidence_reads_as_sentences(tmp_path):
    _, _, text = written(tmp_path, manifest(variant()))
    assert "Error over floor of logits on 5 seeds of inputs: 1.02× (0.971× to 1.06×)" in text
    assert "at [0, 133] of text: 262 instead of 11,907, which the truth puts 3.17e−3 higher" in text
    assert "layers.2.mlp.act" in text and "0.41 %" in text and "outside the layers" in text
    assert "Worst elements of logits" in text and "[0, 17, 4211]" in text


def test_tokens_that_never_part_are_said_not_to(tmp_path):
    same = verdict().model_copy(update={"greedy": None, "floor_greedy": None})
    _, _, text = written(tmp_path, manifest(variant(verdicts=(same,))))
    assert "given the same text: none. PyTorch fp16: none." in text


def test_a_second_opinion_shows_no_elements(tmp_path):
    weak = verdict("onnxruntime:cpu", judged=False)
    _, page, text = written(tmp_path, manifest(variant(verdicts=(weak,))))
    assert "Worst elements" not in text and len(page.all("svg")) == 4  # ratios and layers


def test_the_histogram_ends_at_the_last_bin_in_use():
    (found,) = seen()["elements"]
    assert used(found)[-1] == "more"  # PyTorch's
    alone = found.model_copy(update={"floor_ulps": {}})
    assert used(alone) == ["0.5", "1", "2", "4", "8", "16"]
    assert [bin_name(list(found.ulps), n) for n in (0, 1, 12)] == [
        "up to 0.5",
        "0.5 to 1",
        "over 1024",
    ]


def test_bars_are_as_long_as_their_shares(tmp_path):
    """The path of each bar against the counts: lengths in one proportion."""
    (found,) = seen()["elements"]
    alone = found.model_copy(update={"floor_ulps": {}})
    judged = verdict().model_copy(update={"elements": (alone,), "layer_names": (), "gates": ()})
    judged = judged.model_copy(update={"outputs": ()})
    html, _, _ = written(tmp_path, manifest(variant(verdicts=(judged,))), figures=True)
    svg = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)[0]
    bars = re.findall(r'd="M ([\d.]+) [\d.]+\s*L ([\d.]+) [^"]*"[^>]*plot-first', svg)
    widths = [float(right) - float(left) for left, right in bars]
    counts = [found.ulps[edge] for edge in used(alone)]
    for width, count in zip(widths, counts, strict=False):
        assert abs(width / widths[0] - count / counts[0]) < 0.01


def test_an_output_without_counted_elements_has_no_figure(tmp_path):
    empty = ElementsRecord(output="logits", dtype="fp16", ulps={}, floor_ulps={}, worst=())
    judged = verdict().model_copy(update={"elements": (empty,)})
    _, page, _ = written(tmp_path, manifest(variant(verdicts=(judged,))))
    assert len(page.all("svg")) == 4
