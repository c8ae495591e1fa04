"""The zoo: no system is missing, a sample builds with its kernels read back, and the page is what the results say."""

import importlib
import sys
from pathlib import Path

import pytest

from blockforge.core.dtypes import DType
from blockforge.model.config import Llama3Scaling, LongRopeScaling
from blockforge.model.presets import PRESETS
from blockforge.validate.limits import Limits

ROOT = Path(__file__).resolve().parent.parent
SM89, SM120 = "tensorrt-rtx:sm89", "tensorrt-rtx:sm120"
PARTS = ("zoo", "zoo_run", "zoo_page", "zoo_limits", "zoo_systems")
# What the texts say of each system, as a question to its tiny preset: preset -> does it hold?
TEXTS = {
    "transformer-tiny": lambda c: (
        (c.placement, c.norm.kind, c.feed_forward.kind) == ("post", "layer", "relu")
        and c.feed_forward.bias and c.attention.bias and c.encoder is not None
        and c.feed_forward.intermediate_size == 4 * c.hidden_size
        and c.embedding.positions == "sinusoidal"
    ),
    "transformer-tiny-encoder": lambda c: c.encoder is None and not c.attention.causal,
    "transformer-tiny-decoder": lambda c: c.encoder is None and c.attention.causal,
    "bert-tiny": lambda c: (
        (c.placement, c.norm.kind, c.feed_forward.kind) == ("post", "layer", "gelu")
        and c.padding_mask and c.embedding.positions == "learned"
    ),
    "gpt2-tiny": lambda c: (
        (c.placement, c.norm.kind, c.feed_forward.kind) == ("pre", "layer", "gelu_tanh")
        and c.attention.bias and c.embedding.positions == "learned"
    ),
    "llama-tiny": lambda c: (
        (c.placement, c.norm.kind, c.feed_forward.kind) == ("pre", "rms", "swiglu")
        and c.attention.rope is not None and 1 < c.attention.num_kv_heads < c.attention.num_heads
    ),
    "llama-tiny-untied": lambda c: (
        type(c.attention.rope.scaling) is Llama3Scaling and c.attention.num_kv_heads == c.attention.num_heads
    ),
    "mistral-tiny": lambda c: c.attention.window is not None,
    "qwen2.5-tiny": lambda c: c.attention.bias and not c.attention.out_bias,
    "qwen3-tiny": lambda c: c.attention.qk_norm is not None,
    "palm-tiny": lambda c: (
        c.placement == "parallel" and c.attention.num_kv_heads == 1 and not c.attention.bias
        and c.feed_forward.kind == "swiglu" and not c.feed_forward.bias and not c.norm.bias
    ),
    "t5-tiny": lambda c: (
        c.norm.kind == "rms" and c.attention.score_scale == 1
        and c.feed_forward.kind == "geglu_tanh" and c.attention.relative_bias is not None
    ),
    "phi-3-tiny": lambda c: c.attention.packed and c.feed_forward.packed,
    "phi-3-tiny-longrope": lambda c: type(c.attention.rope.scaling) is LongRopeScaling,
    "partial-rope-tiny": lambda c: c.attention.rotary_dim < c.attention.head_dim,
    "parallel-tiny": lambda c: c.placement == "parallel",
    "gemma-2-tiny": lambda c: (
        c.placement == "sandwich" and c.attention.softcap and c.head.softcap and c.attention.window
        and c.feed_forward.kind == "geglu_tanh"
    ),
    "gemma-3-tiny": lambda c: (
        c.placement == "sandwich" and c.attention.qk_norm is not None and c.attention.window
    ),
    "grok-1-tiny": lambda c: c.placement == "sandwich" and c.feed_forward.experts is not None,
    "deepseek-v3-tiny": lambda c: (
        c.attention.latent is not None and c.feed_forward.experts.shared_size is not None
        and c.feed_forward.experts.score == "sigmoid"
    ),
    "sandwich-tiny": lambda c: c.placement == "sandwich",
    "deepnorm-tiny": lambda c: c.deepnorm.alpha > 1 > c.deepnorm.beta,
    "glu-tiny": lambda c: c.feed_forward.kind == "glu",
    "reglu-tiny": lambda c: c.feed_forward.kind == "reglu",
    "geglu-tiny": lambda c: c.feed_forward.kind == "geglu",
    "rms-eps-outside-tiny": lambda c: c.norm.kind == "rms_eps_outside",
    "batchnorm-tiny": lambda c: c.norm.kind == "batch",
}  # fmt: skip


@pytest.fixture(scope="module")
def parts():
    """The command's modules by name; they import each other as scripts do."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield {name: importlib.import_module(name) for name in PARTS}
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("preset", TEXTS)
def test_every_system_of_the_texts_has_its_preset(parts, preset):
    assert preset in parts["zoo"].PRESETS
    assert TEXTS[preset](PRESETS[preset])


def test_every_preset_belongs_to_one_system(parts):
    systems = parts["zoo_systems"].SYSTEMS
    listed = [name for system in systems for name in (*system.tiny, *system.full_sizes())]
    assert sorted(listed) == sorted(set(PRESETS) - {"llama-small"})


def rows(parts, preset, folder, precisions, targets):
    pytest.importorskip("tensorrt_rtx")
    return list(parts["zoo_run"].run_preset(preset, folder, precisions, targets))


# what each sample shows: preset -> words in what was legalised
SAMPLE = {"llama-tiny": "SwiGLU", "gemma-2-tiny": "softcap"}


@pytest.mark.parametrize("preset", SAMPLE)
def test_a_sample_builds_in_fp16(parts, preset, tmp_path):
    (row,) = rows(parts, preset, tmp_path, [DType.FP16], [SM89])
    assert row.failures == ()
    built = row.engines[SM89]
    assert built.kernels > 2 * built.per_block > 10
    assert max(built.dtypes, key=built.dtypes.get) == "fp16"
    assert any(SAMPLE[preset] in line for line in built.legalized)
    assert 0.5 < row.errors["typed-evaluator"] < 2
    assert row.operators["Attention"] == 2
    assert parts["zoo_run"].Row.from_json(row.to_json()) == row


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["transformer-tiny", "gemma-3-tiny", "deepseek-v3-tiny"])
def test_a_wider_sample_builds_in_fp32_and_bf16(parts, preset, tmp_path):
    for row in rows(parts, preset, tmp_path, [DType.FP32, DType.BF16], [SM120]):
        assert row.failures == (), row.precision
        assert row.engines[SM120].kernels


def test_only_a_known_refusal_is_no_failure(parts, tmp_path, monkeypatch):
    run, target = parts["zoo_run"], "onnxruntime:cpu"
    (row,) = run.run_preset("llama-tiny", tmp_path / "a", [DType.BF16], [target])
    assert row.failures == () and row.engines[target].refused.endswith("MatMul(13)")
    monkeypatch.setattr(run, "KNOWN", {})
    monkeypatch.setattr(run, "LIMITS", Limits(max_error_over_floor=0.1))
    (row,) = run.run_preset("llama-tiny", tmp_path / "b", [DType.BF16], [target])
    refused, inexact = row.failures
    assert "NOT_IMPLEMENTED" in refused and "error over floor" in inexact


def test_the_page_is_what_the_last_run_found(parts):
    """Complete, green, and written by the command: `make zoo` renews both files."""
    zoo = parts["zoo"].load()
    found = [(row.preset, row.precision) for row in zoo.rows]
    assert found == [
        (p, d.value) for p in parts["zoo"].PRESETS for d in parts["zoo_run"].PRECISIONS
    ]
    assert zoo.failures == ()
    for row in zoo.rows:
        assert set(row.engines) == set(parts["zoo_run"].TARGETS)
    assert parts["zoo_page"].page(zoo) == (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def test_a_failed_row_is_seen_on_the_page(parts):
    run, page = parts["zoo_run"], parts["zoo_page"]
    rows = [run.Row(p, d, engines={SM89: run.Built(refused="no")}, failures=("sm89: no",))
            for p in parts["zoo"].PRESETS for d in ("fp32",)]  # fmt: skip
    text = page.page(page.Zoo({}, tuple(rows), ()))
    assert f"**0 of {len(rows)} rows are green**" in text and "**failed**" in text
    assert "llama-tiny fp32: sm89: no" in text
