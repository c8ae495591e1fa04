"""The decoder against transformers: equal in float64, within float32's own error in float32."""

import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.model.build import build_module, load_module, parameter_shapes, signature
from blockforge.model.checkpoints import open_checkpoint, preset_checkpoint
from blockforge.model.presets import PRESETS

IDS = torch.randint(0, 97, (2, 200), generator=torch.Generator().manual_seed(1))
# Per layer some 14 roundings meet on the residual path (two norms of 3, projections, rotation, softmax, SwiGLU,
# two adds), each of relative size below 2^-24; 3 layers and the head, all adding up: the worst case.
FLOAT32 = 4 * 14 * 2**-24


def relative(actual: torch.Tensor, truth: torch.Tensor) -> float:
    return ((actual.double() - truth).norm() / truth.norm()).item()


def test_float64_logits_equal_transformers(case, saved, hf_model, hf_logits):
    _, folder = saved(case)
    ours = load_module(open_checkpoint(folder), dtype=torch.float64)
    truth = hf_logits(hf_model(case, torch.float64), IDS)
    assert truth.dtype == torch.float64
    assert relative(ours(IDS), truth) < 1e-12


def test_float32_logits_equal_transformers(case, saved, hf_model, hf_logits):
    _, folder = saved(case)
    ours = load_module(open_checkpoint(folder), dtype=torch.float32)(IDS)
    assert ours.dtype == torch.float32
    assert relative(ours, hf_logits(hf_model(case, torch.float64), IDS)) < FLOAT32


def test_the_oracle_really_is_float64(hf_model, hf_logits):
    """Near miss: without widening, transformers' own float32 upcasts show."""
    model = hf_model("llama3 scaling", torch.float64)
    with torch.no_grad():
        plain = model(IDS).logits
    assert relative(plain, hf_logits(model, IDS)) > 1e-9


def test_a_single_block_equals_the_decoders(saved):
    """Block 1 alone maps what enters it in the decoder to what leaves it."""
    checkpoint = open_checkpoint(saved("gqa tied")[1])
    decoder = load_module(checkpoint, dtype=torch.float64)
    seen = {}
    decoder.layers[1].register_forward_hook(lambda _, args, out: seen.update(x=args[0], y=out))
    decoder(IDS)
    block = load_module(checkpoint, layer=1, dtype=torch.float64)
    torch.testing.assert_close(block(seen["x"]), seen["y"], rtol=0, atol=0)
    names = [name for name, _ in block.named_parameters()]
    assert all(name.startswith("layers.1.") for name in names)
    assert len(names) == 9


def test_later_tokens_change_nothing_before_them(saved):
    module = load_module(open_checkpoint(saved("mha untied")[1]), dtype=torch.float64)
    changed = IDS.clone()
    changed[:, 100] = (changed[:, 100] + 1) % 97
    before, after = module(IDS), module(changed)
    assert relative(after[:, :100], before[:, :100]) < 1e-12
    assert all(relative(after[:, i], before[:, i]) > 1e-6 for i in (100, 101, 199))


@pytest.mark.parametrize("layer", [-1, 2])
def test_an_unknown_layer_is_refused(layer):
    with pytest.raises(UsageError, match="layers 0 to 1"):
        build_module(PRESETS["llama-tiny"], layer=layer)


@pytest.mark.parametrize("layer", [None, 1])
def test_a_module_without_numbers_has_only_parameters(layer):
    module = build_module(PRESETS["llama-tiny"], layer=layer)
    assert not list(module.buffers())
    assert all(p.is_meta and not p.requires_grad for p in module.parameters())
    assert not module.training


# Published counts: the models' cards (safetensors parameters), Llama 1 and 2 papers
PUBLISHED = {
    "llama-7b": 6_738_415_616,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "mistral-7b": 7_241_732_096,
    "yi-6b": 6_061_035_520,
    "yi-34b": 34_388_917_248,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "phi-3-mini-4k": 3_821_079_552,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "deepseek-v3": 671_026_419_200,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "minilm-l6": 22_713_216,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-base": 247_577_856,
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
}
# Counts that papers round, in units of the last digit they print: (published, unit)
ROUNDED = {
    "palm-8b": (8.63e9, 0.01e9),
    "palm-62b": (62.50e9, 0.01e9),
    "palm-540b": (540.35e9, 0.01e9),
    "gpt-3-175b": (175.0e9, 1e9),  # table 2.1
    "grok-1": (314e9, 2e9),  # the release says 314B; its own code holds 315.7
    "transformer-base": (65e6, 2e6),  # table 3; shared embeddings of 37000 tokens give 63.1
    "transformer-big": (213e6, 2e6),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_presets_have_the_rounded_number_of_parameters(name):
    published, unit = ROUNDED[name]
    shapes = parameter_shapes(PRESETS[name])
    assert abs(sum(torch.Size(shape).numel() for shape in shapes.values()) - published) < unit


def test_every_published_size_is_checked():
    """The rest are tiny ones, or a part of a model that is checked."""
    rest = set(PRESETS) - set(PUBLISHED) - set(ROUNDED)
    assert {name for name in rest if "tiny" not in name} == {"llama-small", "t5-v1.1-base-encoder"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name):
    shapes = parameter_shapes(PRESETS[name])
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == PUBLISHED[name]


def test_preset_weights_depend_on_seed_and_name_only():
    first, again = preset_checkpoint("llama-tiny"), preset_checkpoint("llama-tiny")
    names = first.names()
    backwards = {name: again.read(name) for name in reversed(names)}
    assert all(torch.equal(first.read(name), backwards[name]) for name in names)
    other = preset_checkpoint("llama-tiny", seed=1)
    assert not any(torch.equal(first.read(name), other.read(name)) for name in names)
    q, k = (f"layers.0.self_attn.{p}_proj.weight" for p in "qk")
    assert not torch.equal(first.read(q)[:32], first.read(k))


def test_preset_activations_keep_their_size():
    """Random weights exercise the model: logits neither vanish nor explode."""
    module = load_module(preset_checkpoint("llama-small"), dtype=torch.float32)
    ids = torch.randint(0, 1024, (1, 64), generator=torch.Generator().manual_seed(0))
    assert 0.3 < module(ids).std() < 3


def test_an_unknown_preset_lists_the_presets():
    with pytest.raises(UsageError, match=r"llama-tiny.*smollm2-135m"):
        preset_checkpoint("llama-huge")


def test_signature():
    (ids,), (logits,) = signature(PRESETS["smollm2-135m"], None, DType.FP16)
    assert (ids.name, ids.dtype, ids.dims) == ("input_ids", "int64", ("batch", "sequence"))
    assert (logits.name, logits.dtype) == ("logits", "fp16")
    assert logits.dims == ("batch", "sequence", 49152)
    (hidden,), (output,) = signature(PRESETS["smollm2-135m"], 3, DType.FP32)
    assert (hidden.name, output.name) == ("hidden_states", "output")
    assert hidden.dims == output.dims == ("batch", "sequence", 576)
    assert hidden.dtype == output.dtype == "fp32"
