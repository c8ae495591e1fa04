"""Gradients at initialisation against depth, for a norm on the residual path and one beside it.

    post-norm   y = norm(x + sub_layer(x))        pre-norm   y = x + sub_layer(norm(x)),  one more norm at the end

    python benchmarks/gradient_growth.py [--save]

Blocks as in the original Transformer (attention, ReLU feed-forward, LayerNorm), Xavier weights, normal inputs, cross-entropy
against random labels. The figure of a block is the Frobenius norm of the loss's gradient in its second
feed-forward matrix, as in Xiong et al. 2020 (arXiv 2002.04745, figures 3 and 4); mean of several seeds.
--save writes the plot for the documentation and the figures under benchmarks/results/.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

ROOT = Path(__file__).resolve().parent.parent
PLOT = ROOT / "docs" / "images" / "gradient-growth.svg"
RESULTS = ROOT / "benchmarks" / "results" / "gradient_growth.json"
DEPTHS = (2, 4, 8, 16, 32, 64)
HIDDEN, HEADS, CLASSES = 64, 4, 128
BATCH, SEQUENCE = 4, 16
SEEDS = 5


class SubLayers(nn.Module):
    """Attention and feed-forward of one block, with their two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        for weight in (
            *self.qkv.weight.chunk(3),
            self.out.weight,
            self.up.weight,
            self.down.weight,
        ):
            nn.init.xavier_uniform_(weight.data)

    def attend(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """Causal multi-head attention; same shape."""
        heads = self.qkv(x_BSH).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(-2))

    def feed(self, x_BSH: torch.Tensor) -> torch.Tensor:
        """ReLU feed-forward; same shape."""
        return self.down(F.relu(self.up(x_BSH)))


def post_norm(x: torch.Tensor, norm: nn.Module, sub_layer: Callable) -> torch.Tensor:
    """The norm stands on the residual path."""
    return norm(x + sub_layer(x))


def pre_norm(x: torch.Tensor, norm: nn.Module, sub_layer: Callable) -> torch.Tensor:
    """The norm stands before the sub-layer; the residual path is the identity."""
    return x + sub_layer(norm(x))


PLACEMENTS = {"post-norm": post_norm, "pre-norm": pre_norm}


def gradients(placement: str, depth: int, seed: int) -> list[float]:
    """The gradient's norm in each block, first block first."""
    torch.manual_seed(seed)
    place = PLACEMENTS[placement]
    blocks = [SubLayers() for _ in range(depth)]
    head = nn.Linear(HIDDEN, CLASSES, bias=False)
    nn.init.xavier_uniform_(head.weight)
    x = torch.randn(BATCH, SEQUENCE, HIDDEN)
    for block in blocks:
        x = place(x, block.norms[0], block.attend)
        x = place(x, block.norms[1], block.feed)
    if placement == "pre-norm":
        x = F.layer_norm(x, (HIDDEN,))
    labels = torch.randint(CLASSES, (BATCH * SEQUENCE,))
    F.cross_entropy(head(x).flatten(0, 1), labels).backward()
    return [float(block.down.weight.grad.norm()) for block in blocks]


def measure() -> dict[str, dict[str, list[float]]]:
    """placement -> depth -> mean gradient norm per block."""
    return {
        placement: {
            str(depth): [
                round(statistics.fmean(of_block), 5)
                for of_block in zip(
                    *(gradients(placement, depth, seed) for seed in range(SEEDS)), strict=True
                )
            ]
            for depth in DEPTHS
        }
        for placement in PLACEMENTS
    }


def draw(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Two panels: per block of the deepest model; against depth, all blocks together and the last alone."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gradient-growth"  # same file for the same figures
    from matplotlib import pyplot

    figure, (along, across) = pyplot.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    for (placement, by_depth), colour in zip(found.items(), ("#c0392b", "#1f6f8b"), strict=True):
        norms = by_depth[str(DEPTHS[-1])]
        along.semilogy(range(1, len(norms) + 1), norms, color=colour)
        whole = [math.hypot(*by_depth[str(depth)]) for depth in DEPTHS]
        last = [by_depth[str(depth)][-1] for depth in DEPTHS]
        across.loglog(DEPTHS, whole, "o-", base=2, color=colour, label=f"{placement}, all blocks")
        across.loglog(DEPTHS, last, "o:", base=2, color=colour, label=f"{placement}, last block")
    along.set(
        xlabel=f"block of {DEPTHS[-1]}",
        ylabel="gradient norm of the loss",
        title="Along the blocks",
    )
    across.set(xlabel="number of blocks", title="Against the depth")
    for axes in (along, across):
        axes.grid(alpha=0.3)
        axes.yaxis.set_major_formatter("{x:g}")
    across.xaxis.set_major_formatter("{x:g}")
    across.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = measure()
    print(f"{'':10}{'blocks':>8}{'first':>10}{'last':>10}{'all':>10}")
    for placement, by_depth in found.items():
        for depth, norms in by_depth.items():
            whole = math.hypot(*norms)
            print(f"{placement:10}{depth:>8}{norms[0]:10.4f}{norms[-1]:10.4f}{whole:10.4f}")
    if arguments.save:
        draw(found, PLOT)
        record = {
            "command": "python benchmarks/gradient_growth.py --save",
            "torch": version("torch"),
            "hidden": HIDDEN,
            "seeds": SEEDS,
            "gradient_norms": found,
        }
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
