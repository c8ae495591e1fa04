"""The worked numbers of the three texts that this project grew from, each as the text states it."""

import math
from dataclasses import replace

import pytest
import torch

from blockforge.model.build import parameter_shapes
from blockforge.model.config import FeedForwardConfig, NormConfig
from blockforge.model.norms import build_norm
from blockforge.model.presets import PRESETS

# Text 2, section 2.3: one row of LayerNorm worked by hand; table 5-1: gamma and beta
ROW = [-1.079, 0.004, 0.277, -0.717]
GAMMA, BETA = [1.2, 0.8, 1.0, 1.1], [0.1, -0.1, 0.05, 0.2]
# Text 2, section 2.4: all six rows, after gamma and beta
ROWS = [
    [0.565, -1.356, 1.226, 0.208],
    [-1.446, 0.463, 1.257, -0.485],
    [-1.218, 0.026, 1.599, -0.469],
    [0.740, -1.353, -0.038, 1.433],
    [0.133, -0.539, -1.025, 1.955],
    [1.265, 0.170, 0.417, -1.643],
]
DIGIT = 0.5e-3  # three decimals
SPREAD = 2e-3  # what a digit in the input moves an output by: two divisions by a sigma of 0.543


def layer_norm(eps: float = 1e-12):
    norm = build_norm(NormConfig(eps, "layer"), 4).double()
    norm.weight.data = torch.tensor(GAMMA, dtype=torch.float64)
    norm.bias.data = torch.tensor(BETA, dtype=torch.float64)
    return norm


def test_the_worked_row_of_layer_norm():
    x = torch.tensor(ROW, dtype=torch.float64)
    assert x.mean().item() == pytest.approx(-0.379, abs=DIGIT)
    assert x.var(unbiased=False).sqrt().item() == pytest.approx(0.543, abs=DIGIT)
    assert layer_norm()(x).tolist() == pytest.approx([-1.446, 0.463, 1.257, -0.485], abs=SPREAD)
    unscaled = (layer_norm()(x) - torch.tensor(BETA)) / torch.tensor(GAMMA)
    assert unscaled.tolist() == pytest.approx([-1.289, 0.704, 1.207, -0.622], abs=SPREAD)


@pytest.mark.parametrize("row", range(6))
def test_every_row_of_the_result_has_mean_0_and_variance_1_before_gamma_and_beta(row):
    unscaled = (torch.tensor(ROWS[row]).double() - torch.tensor(BETA)) / torch.tensor(GAMMA)
    # four elements, each off by DIGIT / gamma: the mean by that at most, the variance by twice that times the RMS of 1
    assert unscaled.mean().item() == pytest.approx(0, abs=DIGIT / min(GAMMA))
    assert unscaled.var(unbiased=False).item() == pytest.approx(1, abs=2 * DIGIT / min(GAMMA))
    # and so our LayerNorm gives it back
    torch.testing.assert_close(
        layer_norm()(unscaled), torch.tensor(ROWS[row]).double(), rtol=0, atol=SPREAD
    )


def grown(norm) -> list[float]:
    """Ten layers of 1.5 x + 0.5 over a row that starts at 1.0 in its largest element."""
    x = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    sizes = []
    for _ in range(10):
        x = 1.5 * norm(x) + 0.5
        sizes.append(x[0].item())
    return sizes


def test_without_a_norm_one_grows_to_114_in_ten_layers():
    """Text 2, figure 5-3: 114.3; the fixed point of 1.5 x + 0.5 is -1, so x + 1 grows 1.5 times a layer."""
    sizes = grown(lambda x: x)
    assert sizes[-1] == pytest.approx(2 * 1.5**10 - 1, rel=1e-12)
    assert round(sizes[-1], 1) == 114.3


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_with_a_norm_it_stays_put(kind):
    sizes = grown(build_norm(NormConfig(1e-5, kind), 4).double())
    assert (
        max(sizes) <= 1.5 * 2 + 0.5
    )  # a norm's largest element is below the root of the row's length
    assert sizes[-1] == pytest.approx(sizes[-2], rel=0.05)
    assert sizes[-1] < 114.3 / 30


def test_11008_is_eight_thirds_of_4096_rounded_up_to_256():
    eight_thirds = 8 * 4096 / 3
    assert round(eight_thirds) == 10923
    assert math.ceil(eight_thirds / 256) * 256 == 11008
    assert PRESETS["llama-7b"].feed_forward.intermediate_size == 11008


def per_block(config) -> dict[str, int]:
    """Weights of block 0's matrices, by sub-layer."""
    sizes = {"self_attn": 0, "mlp": 0}
    for name, shape in parameter_shapes(config, layer=0).items():
        part = name.split(".")[2]
        if part in sizes and len(shape) == 2:
            sizes[part] += math.prod(shape)
    return sizes


@pytest.mark.parametrize("kind", ["relu", "gelu", "swiglu"])
def test_a_block_has_12_d_squared_weights_and_two_thirds_in_the_feed_forward(kind):
    """4 d^2 of attention and 8 d^2 of feed-forward: 2 matrices of 4 d, or 3 gated ones of 8/3 d."""
    width = 768
    size = 4 * width if kind != "swiglu" else 8 * width // 3
    config = replace(
        PRESETS["gpt2"], feed_forward=FeedForwardConfig(size, kind, bias=kind != "swiglu")
    )
    sizes = per_block(config)
    assert sizes == {"self_attn": 4 * width**2, "mlp": 8 * width**2}
    assert sum(sizes.values()) == 12 * width**2
    assert sizes["mlp"] / sum(sizes.values()) == pytest.approx(2 / 3)


def test_llama_3_70b_has_near_70_6_billion_parameters():
    """80 blocks, embedding and head of 1.05 billion each; 80 * 12 d^2 alone would be 64.4 billion."""
    config = PRESETS["llama-3-70b"]
    shapes = parameter_shapes(config)
    total = sum(map(math.prod, shapes.values()))
    assert total / 1e9 == pytest.approx(70.6, abs=0.05)
    table = math.prod(shapes["embed_tokens.weight"])
    assert table / 1e9 == pytest.approx(1.05, abs=0.005)
    assert math.prod(shapes["lm_head.weight"]) == table  # Llama 3 ties nothing
    assert pytest.approx(64.4, abs=0.05) == 80 * 12 * 8192**2 / 1e9


def test_layer_norm_has_two_numbers_per_element():
    """Text 2: 2 * 4096 = 8192."""
    norm = build_norm(NormConfig(1e-5, "layer"), 4096)
    assert sum(p.numel() for p in norm.parameters()) == 8192
    assert norm.weight.unique().tolist() == [1.0]
    assert norm.bias.unique().tolist() == [0.0]
