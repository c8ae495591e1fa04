"""The arithmetic of the texts about transformer blocks, worked by hand, against the account."""

import dataclasses
import itertools
import json
import math
import runpy
from pathlib import Path

import pytest

from blockforge.core.errors import UsageError
from blockforge.model.config import (
    AttentionConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    RopeConfig,
)
from blockforge.model.cost import SubLayer, cost, cost_report
from blockforge.model.cost.report import compute_bound_batch
from blockforge.model.gpus import GPUS, gpu_from_name
from blockforge.model.presets import PRESETS

D, LAYERS, VOCABULARY = 96, 5, 64
LLAMA = PRESETS["llama-3-70b"]


def stack(feed_forward):
    """Multi-head blocks of width D without biases."""
    return ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=D,
        num_layers=LAYERS,
        max_position_embeddings=512,
        norm=NormConfig(1e-5),
        attention=AttentionConfig(4, 4, D // 4, RopeConfig(10000.0)),
        feed_forward=feed_forward,
    )


STANDARD = stack(FeedForwardConfig(4 * D, kind="gelu"))
GATED = stack(FeedForwardConfig(8 * D // 3, kind="swiglu"))


def row(counted, name):
    return counted.row(name)


@pytest.mark.parametrize("config", [STANDARD, GATED], ids=["4d", "8/3 d gated"])
def test_a_block_has_12_d_squared_parameters_two_thirds_of_them_feed_forward(config):
    counted = cost(config)
    attention = (
        row(counted, SubLayer.QKV).parameters + row(counted, SubLayer.OUTPUT_PROJECTION).parameters
    )
    feed_forward = row(counted, SubLayer.FEED_FORWARD).parameters
    assert attention + feed_forward == LAYERS * 12 * D**2
    assert feed_forward == LAYERS * 8 * D**2
    assert row(counted, SubLayer.NORM).parameters == (2 * LAYERS + 1) * D


@pytest.mark.parametrize("config", [STANDARD, GATED], ids=["4d", "8/3 d gated"])
def test_the_flop_table_per_token(config):
    """QKV 6 d^2, output 2 d^2, feed-forward 16 d^2; attention 4 T d with every pair, 2 (T + 1) d under the mask."""
    length = 40
    counted = cost(config, sequence=length)
    tokens = length * LAYERS
    assert row(counted, SubLayer.QKV).flops == tokens * 6 * D**2
    assert row(counted, SubLayer.OUTPUT_PROJECTION).flops == tokens * 2 * D**2
    assert row(counted, SubLayer.FEED_FORWARD).flops == tokens * 16 * D**2
    assert row(counted, SubLayer.ATTENTION).flops == tokens * 4 * length * D
    assert row(counted, SubLayer.ATTENTION).needed_flops == tokens * 2 * (length + 1) * D


def test_one_decoded_token_pays_the_whole_row_of_the_table():
    step = cost(STANDARD, sequence=40, mode="decode")
    blocks = step.flops - row(step, SubLayer.HEAD).flops
    assert blocks == LAYERS * (24 * D**2 + 4 * 40 * D)


def test_llama_3_70b_counted_by_the_text_and_by_the_module():
    hidden, vocabulary, layers = 8192, 128256, 80
    assert (LLAMA.hidden_size, LLAMA.vocab_size, LLAMA.num_layers) == (hidden, vocabulary, layers)
    assert math.isclose(layers * 12 * hidden**2, 64.4e9, rel_tol=1e-3)
    assert math.isclose(vocabulary * hidden, 1.05e9, rel_tol=1e-3)
    per_block = 2 * hidden**2 + 2 * hidden * 1024 + 3 * hidden * 28672 + 2 * hidden
    total = layers * per_block + 2 * vocabulary * hidden + hidden
    assert cost(LLAMA).parameters == total == 70_553_706_496  # "70.6 billion" on the model card
    assert round(total / 1e9, 1) == 70.6


def test_grouped_queries_make_the_cache_of_llama_3_70b_an_eighth():
    """2 (keys, values) x 80 layers x 8 heads x 128 x 2 bytes = 320 KiB a token; with 64 heads 2.5 MiB."""
    full = dataclasses.replace(LLAMA.attention, num_kv_heads=64)
    assert cost(LLAMA).kv_cache_bytes_per_token == 320 * 1024
    multi_head = dataclasses.replace(LLAMA, attention=full)
    assert cost(multi_head).kv_cache_bytes_per_token == 2560 * 1024


def test_feed_forward_leads_in_short_contexts_and_attention_in_long_ones():
    short, long = (cost(STANDARD, sequence=s) for s in (8, 100 * D))
    assert row(short, SubLayer.FEED_FORWARD).flops > row(short, SubLayer.ATTENTION).flops
    assert row(long, SubLayer.FEED_FORWARD).flops < row(long, SubLayer.ATTENTION).flops


def test_the_roofline_of_one_matrix_by_hand():
    """Output projection: 2 n B FLOPs against 2 n bytes of weights and 2 B (X + 2 H) of activations."""
    gpu = gpu_from_name("h100-sxm")
    n, moved = 8192 * 8192, 3 * 8192
    ridge = gpu.peaks["bf16"] / gpu.bandwidth
    batch = math.ceil(ridge / (1 - ridge * moved / n))
    name = SubLayer.OUTPUT_PROJECTION
    found = compute_bound_batch(LLAMA, name, sequence=1, dtype="bf16", gpu=gpu)
    assert found == batch
    for size, bound in ((batch - 1, "memory"), (batch, "compute")):
        step = row(cost(LLAMA, batch=size, sequence=1, mode="decode"), name)
        assert step.bound == bound
        seconds = {
            "memory": 80 * 2 * (n + size * moved) / 3.35e12,
            "compute": 80 * 2 * n * size / 989.4e12,
        }
        assert math.isclose(step.seconds, seconds[bound], rel_tol=1e-12)


def test_attention_stays_memory_bound_and_the_matrices_do_not():
    report = cost_report("llama-3-8b", sequence=4096)
    bounds = report.compute_bound_batch
    assert bounds[SubLayer.ATTENTION] is None
    matrices = {SubLayer.QKV, SubLayer.OUTPUT_PROJECTION, SubLayer.FEED_FORWARD, SubLayer.HEAD}
    ridge = 989.4 / 3.35  # batch at which n weights of 2 bytes and 2 n FLOPs meet
    assert all(ridge < bounds[name] < 2 * ridge for name in matrices)


def test_the_report_is_json_with_the_prefill_on_top():
    report = cost_report("smollm2-135m", batch=2, sequence=128, dtype="fp16", gpu="l4")
    read = json.loads(json.dumps(report.as_dict()))
    assert read["parameters"] == 134_515_008 == sum(r["parameters"] for r in read["rows"])
    assert read["flops"] == sum(r["flops"] for r in read["rows"]) > read["decode"]["flops"]
    assert read["weight_bytes"] == 2 * read["parameters"]
    assert read["kv_cache_bytes_per_token"] == 30 * 2 * 3 * 64 * 2
    assert [r["name"] for r in read["rows"]] == [s.value for s in SubLayer]
    assert read["seconds"] == pytest.approx(sum(r["seconds"] for r in read["rows"]), rel=1e-12)
    assert read["tokens_per_second"] == pytest.approx(256 / read["seconds"], rel=1e-12)
    assert read["fits"]


def test_what_does_not_fit_is_said():
    assert not cost(LLAMA, gpu="h200").fits  # 141.1 GB of weights and a cache
    assert cost(LLAMA, gpu="h200", dtype="fp8_e4m3").fits


def test_an_unknown_preset_lists_the_presets():
    with pytest.raises(UsageError, match="llama-3-70b"):
        cost_report("llama-4")


PUBLISHED = {  # billions, from the papers and model cards; DeepSeek and Grok also per token
    "palm-8b": 8.63,
    "palm-62b": 62.50,
    "palm-540b": 540.35,
    "gpt-3-175b": 175,
    "bert-base": 0.110,
    "t5-v1.1-xxl": 11,
    "llama-7b": 6.7,
    "llama-3-8b": 8.03,
    "llama-3.2-1b": 1.24,
    "mistral-7b": 7.24,
    "yi-34b": 34.4,
    "qwen2.5-7b": 7.61,
    "qwen3-8b": 8.2,
    "phi-3-mini-4k": 3.8,
    "gemma-2-27b": 27.2,
    "grok-1": 314,
    "deepseek-v3": 671,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_number(name):
    billions = cost(PRESETS[name]).parameters / 1e9
    assert math.isclose(billions, PUBLISHED[name], rel_tol=0.015)


def test_deepseek_v3_activates_37_of_671_billion():
    """Products per token are twice the parameters in use: arXiv 2412.19437 says 37 billion."""
    counted = cost(PRESETS["deepseek-v3"], sequence=1)
    attention = counted.row(SubLayer.ATTENTION).needed_flops
    assert math.isclose((counted.needed_flops - attention) / 2e9, 37, rel_tol=0.015)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_peaks_are_dense_and_in_order(gpu):
    """Each halving of the type at most doubles the rate: a sparse figure among dense ones would quadruple it."""
    assert gpu.source
    rates = [gpu.peaks[t] for t in ("tf32", "bf16", "fp8_e4m3") if t in gpu.peaks]
    assert all(1.9 < wide / narrow < 2.1 for narrow, wide in itertools.pairwise(rates))
    assert gpu.peaks["fp16"] == gpu.peaks["bf16"] and gpu.peaks["fp32"] <= gpu.peaks["tf32"]
    assert ("fp8_e4m3" in gpu.peaks) == (gpu.arch != "sm80")
    assert 1e11 < gpu.bandwidth < 1e13 and 1e10 < gpu.memory < 1e12


@pytest.mark.parametrize("table", ["parts", "flops", "parameters"])
def test_the_documentation_shows_what_its_command_prints(table, capsys):
    """Else: paste the output of `python benchmarks/block_arithmetic.py <table>` into docs/transformer-block.md."""
    root = Path(__file__).resolve().parents[2]
    runpy.run_path(str(root / "benchmarks" / "block_arithmetic.py"))["TABLES"][table]()
    page = (root / "docs" / "transformer-block.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in page
