"""The passes inside export: a user's module, whose weights are not in the graph while it is fused."""

import onnx
import pytest
import torch
from torch import nn

from blockforge.core.errors import ArtefactError
from blockforge.export.axes import Axis, Input
from blockforge.export.export import export_module
from blockforge.export.fusions import FuseOptions

HEADS, SIZE, WIDTH = 2, 8, 16


class Block(nn.Module):
    """A hand-written block: RMSNorm, rotary embedding from stored tables, causal attention, SwiGLU."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)
        self.down = nn.Linear(24, WIDTH)
        angles = torch.outer(torch.arange(32.0), 0.5 ** torch.arange(SIZE // 2))
        table = torch.cat((angles, angles), -1)  # that both halves are alike only the numbers tell
        self.register_buffer("cos", table.cos())
        self.register_buffer("sin", table.sin())

    def norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale

    def rotate(self, x):
        n = x.shape[2]
        a, b = x.chunk(2, -1)
        return x * self.cos[:n] + torch.cat((-b, a), -1) * self.sin[:n]

    def forward(self, x):
        b, n = x.shape[:2]
        parts = self.qkv(self.norm(x)).view(b, n, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        q, k, v = self.rotate(parts[0]), self.rotate(parts[1]), parts[2]
        mask = torch.full((n, n), float("-inf"), dtype=x.dtype).triu(1)
        weights = torch.softmax(q @ k.transpose(-1, -2) * SIZE**-0.5 + mask, -1)
        x = x + (weights @ v).transpose(1, 2).reshape(b, n, WIDTH)
        h = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def exported(module, path, fuse):
    example = torch.randn(2, 5, WIDTH)
    axes = {0: Axis("batch", 1, 8), 1: Axis("sequence", 1, 32)}
    return export_module(module, [Input("x", example, axes)], ["y"], path, fuse=fuse)


def test_a_module_is_fused_and_still_itself(tmp_path):
    done = exported(Block().eval(), tmp_path / "block.onnx", FuseOptions())
    assert done.fusions.counts == {"rms": 2, "ln": 0, "glu": 1, "rope": 2, "attn": 1, "act": 1}
    assert done.fusions.refused == []
    assert done.verified.worst < 1e-6  # float64 on both sides, constants in float32
    for operator in ("RMSNormalization", "RotaryEmbedding", "Attention", "blockforge::SwiGLU"):
        assert operator in done.summary.operators
    assert not {"Softmax", "Sigmoid", "Sqrt"} & done.summary.operators.keys()
    model = onnx.load(tmp_path / "block.onnx", load_external_data=False)
    assert {"scale", "gate.weight"} <= {i.name for i in model.graph.initializer}
    attention = next(n for n in model.graph.node if n.op_type == "Attention")
    replaced = {p.key: p.value for p in attention.metadata_props}["blockforge.replaced"]
    assert "Softmax" in replaced


def test_a_weight_that_is_nan_is_still_refused(tmp_path):
    module = Block().eval()
    with torch.no_grad():
        module.scale[3] = float("nan")
    with pytest.raises(ArtefactError, match="scale"):
        exported(module, tmp_path / "block.onnx", FuseOptions())
    assert not list(tmp_path.iterdir())
