"""Dynamic axes that are not: each module is exported right or refused, with input, axis and reason, before anything is kept."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from blockforge.core.dtypes import DType
from blockforge.core.errors import ArtefactError, UsageError
from blockforge.export.axes import Axis, Input
from blockforge.export.export import export_module

BATCH, SEQ = Axis("batch", 1, 8), Axis("seq", 2, 64)
FROM_ONE = Axis("seq", 1, 64)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        return self.l(x).view(x.shape[0], -1, 2, 4).transpose(1, 2)


class Baked(nn.Module):
    def forward(self, x):
        n = int(x.shape[1])
        return x + torch.full((n, 1), float(n))


class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[1] == 1 else x[:, -1:] + 1


class FarBranch(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[1] > 40 else x


class Cached(nn.Module):
    def __init__(self, n=16):
        super().__init__()
        self.register_buffer("m", torch.full((n, n), -1e4).triu(1))

    def forward(self, x):
        n = x.shape[1]
        return torch.softmax(x @ x.transpose(1, 2) + self.m[:n, :n], -1)


class Relation(nn.Module):
    def forward(self, x, kv):
        return torch.cat([kv, x], 1).view(x.shape[0], 64, 8)


class Divisible(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], x.shape[1] // 4, 4, 8).sum(2)


class DataDependent(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def x(batch: int, seq: int, /, **axes: Axis) -> tuple[Input, ...]:
    example = torch.randn((batch, seq, 8), generator=torch.Generator().manual_seed(0))
    return (Input("x", example, {0: axes.get("batch", BATCH), 1: axes.get("seq", SEQ)}),)


RIGHT = {
    "example of size 1": (Plain(), x(1, 5)),
    "example at the lower bound": (Plain(), x(2, 2, batch=Axis("batch", 2, 8))),
    "example of size 1 twice": (Plain(), x(1, 1, seq=FROM_ONE)),
    "no upper bound": (Plain(), x(2, 5, batch=Axis("batch"), seq=Axis("seq"))),
    "mask of the longest length": (Cached(), x(2, 5, seq=Axis("seq", 1, 16))),
    "branch outside the range": (Branch(), x(2, 5)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_modules_agree_with_torch_at_every_size(tmp_path, name: str):
    module, inputs = RIGHT[name]
    path = tmp_path / "m" / "model.onnx"
    exported = export_module(module.eval(), inputs, ["y"], path)
    assert exported.summary.inputs[0].dims == ("batch", "seq", 8)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    batch, seq = inputs[0].axes[0], inputs[0].axes[1]
    for b, s in ((1, 1), (2, 2), (3, 3), (5, 7), (batch.max or 9, seq.max or 33)):
        if not (batch.serves(b) and seq.serves(s)):
            continue
        sample = torch.randn(b, s, 8)
        with torch.no_grad():
            expected = module(sample).numpy()
        (actual,) = session.run(None, {"x": sample.numpy()})
        assert actual.shape == expected.shape, (b, s)
        # At most 8 products and a softmax, in float32; terms may cancel, so relative to the largest.
        assert np.abs(actual - expected).max() <= 32 * 2**-24 * np.abs(expected).max(), (b, s)


def relation() -> tuple[Input, ...]:
    return (
        Input("x", torch.randn(2, 5, 8), {0: BATCH, 1: Axis("s", 1, 63)}),
        Input("kv", torch.randn(2, 59, 8), {0: BATCH, 1: Axis("k", 1, 63)}),
    )


AXIS = r"'seq'.*\(input 'x' axis 1\)"
REFUSED = {
    "length as a number": (
        Baked(),
        x(2, 5),
        rf"{AXIS}: the module computes with seq as the number 5",
    ),
    "branch at 1": (
        Branch(),
        x(2, 5, seq=FROM_ONE),
        rf"{AXIS.replace('.*', ' = 1 ')}: wrong values in output 'y'",
    ),
    "branch far off": (FarBranch(), x(2, 5), rf"{AXIS}.*seq <= 40"),
    "mask too short": (Cached(), x(2, 5), rf"{AXIS}.*seq <= 16"),
    "divisible lengths only": (Divisible(), x(2, 12), rf"{AXIS}"),
    "related inputs": (
        Relation(),
        relation(),
        r"'k' \(input 'kv' axis 1\).*'s' \(input 'x' axis 1\).*k = 64 - s",
    ),
    "branch on a value": (DataDependent(), x(2, 5), "DataDependent.*data-dependent"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lying_modules_are_refused_before_anything_is_kept(tmp_path, capfd, name: str):
    module, inputs, says = REFUSED[name]
    with pytest.raises(UsageError, match=says):
        export_module(module.eval(), inputs, ["y"], tmp_path / "m" / "model.onnx")
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_an_earlier_file_survives_a_refusal(tmp_path):
    path = tmp_path / "m" / "model.onnx"
    export_module(Plain().eval(), x(2, 5), ["y"], path)
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    with pytest.raises(UsageError):
        export_module(Branch().eval(), x(2, 5, seq=FROM_ONE), ["y"], path)
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))
        self.register_buffer("floor", torch.full((8,), float("-inf")))

    def forward(self, x):
        return torch.maximum(x @ self.weight, self.floor)


def test_nan_parameters_are_refused_and_infinite_buffers_are_not(tmp_path):
    module = Weighted().eval()
    export_module(module, x(2, 5), ["y"], tmp_path / "good.onnx")
    left = sorted(tmp_path.iterdir())
    module.weight.data[3, 3] = float("nan")
    with pytest.raises(ArtefactError, match="weight holds 1 values that are NaN"):
        export_module(module, x(2, 5), ["y"], tmp_path / "bad.onnx")
    assert sorted(tmp_path.iterdir()) == left


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 512)
        self.head = nn.Linear(512, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def test_tied_weights_are_stored_once(tmp_path):
    ids = Input("x", torch.randint(50, (2, 5)), {0: BATCH, 1: SEQ})
    export_module(Tied().eval(), (ids,), ["y"], tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size == 50 * 512 * 4


def test_a_module_without_weights_has_no_data_file(tmp_path):
    export_module(Branch().eval(), x(2, 5), ["y"], tmp_path / "m" / "m.onnx")
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["m.onnx"]


def test_fp16_inside_fp32_outside(tmp_path):
    inputs = (Input("x", x(2, 5)[0].example.half(), {0: BATCH, 1: SEQ}),)
    exported = export_module(
        Plain().half().eval(), inputs, ["y"], tmp_path / "m.onnx", io=DType.FP32
    )
    ends = (*exported.summary.inputs, *exported.summary.outputs)
    assert [end.dtype for end in ends] == ["fp32", "fp32"]
    assert exported.summary.operators["Cast"] == 2


def test_what_the_caller_gets_wrong(tmp_path):
    with pytest.raises(UsageError, match="training mode"):
        export_module(Plain().train(), x(2, 5), ["y"], tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="returns 1 tensors"):
        export_module(Plain().eval(), x(2, 5), ["y", "z"], tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
