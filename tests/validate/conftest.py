"""A tiny decoder in plain torch with switches for faults, and a whole bundle of the tiny Llama, built once.

Both are what this room's tests judge.
"""

import contextlib
import math
import os
import shutil
from dataclasses import dataclass, field
from unittest import mock

import pytest
import torch
from markupsafe import Markup
from torch import nn
from torch.nn.functional import silu

from blockforge.core.bundle import Bundle
from blockforge.core.dtypes import DType
from blockforge.core.manifest import TensorRecord
from blockforge.core.shapes import ShapeRange
from blockforge.validate.inputs import InputPlan, build_cases
from blockforge.validate.reference import cast_floats, compute_truth
from blockforge.validate.runners import Ran

VOCAB, HIDDEN, INNER, LAYERS = 97, 32, 64, 3
INPUTS = (TensorRecord(name="input_ids", dtype="int64", dims=("batch", "sequence")),)


@dataclass(frozen=True)
class Fault:
    """What is wrong with a candidate; nothing by default."""

    swapped: bool = False  # gate and up exchanged
    eps: float = 1e-5
    mask_offset: int = 0  # how far the causal mask looks ahead
    nan_token: int = -1  # a token whose embedding holds one NaN
    scale: float = 1.0  # of one layer's output


class Norm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(HIDDEN)), eps

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


class Block(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.first, self.second = Norm(fault.eps), Norm(fault.eps)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, INNER, bias=False)
        self.up = nn.Linear(HIDDEN, INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).chunk(3, dim=-1)
        ahead = 1 + self.fault.mask_offset
        mask = torch.full((x.shape[1],) * 2, -math.inf, dtype=x.dtype).triu(ahead)
        scores = q @ k.mT / math.sqrt(HIDDEN) + mask
        x = x + self.out(scores.softmax(-1) @ v)
        h = self.second(x)
        gate, up = self.gate(h), self.up(h)
        if self.fault.swapped:
            gate, up = up, gate
        return x + self.down(silu(gate) * up) * self.fault.scale


class Tiny(nn.Module):
    def __init__(self, fault=Fault(), faulty_layer=1):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(
            Block(fault if i == faulty_layer else Fault()) for i in range(LAYERS)
        )
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() == 1:
                    weight.fill_(1.0)
                else:
                    small = name.startswith("embed") or name.endswith(("out.weight", "down.weight"))
                    width = 0.02 if small else 1.5 / math.sqrt(weight.shape[1])
                    weight.copy_(width * torch.randn(weight.shape, generator=generator))
            if fault.nan_token >= 0:
                self.embed.weight[fault.nan_token, 3] = math.nan

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def load(dtype):
    return Tiny().to(dtype).eval()


@dataclass
class TorchRunner:
    """Runs a module the way a graph in `dtype` would; logits in fp32."""

    module: nn.Module
    dtype: torch.dtype = torch.float16
    name: str = "fake"
    inner: bool = True
    overflows: tuple = ()
    largest: dict = field(default_factory=dict)
    values: frozenset[str] = frozenset(f"layers.{i}" for i in range(LAYERS))
    asked: list = field(default_factory=list)
    closed: int = 0

    def close(self):
        self.closed += 1

    def run(self, feeds, keep):
        self.asked.append((feeds, keep))
        kept = {}
        for name in keep:
            part = self.module.get_submodule(name)
            part.register_forward_hook(lambda m, i, o, name=name: kept.update({name: o}))
        with torch.inference_mode():
            logits = self.module(*(cast_floats(f, self.dtype) for f in feeds.values()))
        return Ran({"logits": logits.float()}, kept, self.overflows, self.largest)


RECIPE = {
    "name": "tiny",
    "model": {"preset": "llama-tiny"},
    "export": {"precisions": ["fp32", "fp16"], "io": "fp32"},
    "shapes": {"min": "input_ids:1x1", "opt": "input_ids:1x16", "max": "input_ids:4x64"},
    "engines": {"targets": []},
    "validate": {"limits": {"max_error_over_floor": 3.0}},
}


@contextlib.contextmanager
def no_figures():
    """Reports get two empty drawings for each figure: drawing takes most of a report's time."""

    def stand_in(draw, name, label):
        svg = Markup('<svg class="plot" role="img" aria-label="{}"></svg>').format(label)
        return svg + svg

    with contextlib.ExitStack() as stack:
        for room in ("headroom", "latency", "plots", "ulps"):
            stack.enter_context(mock.patch(f"blockforge.validate.report.{room}.both", stand_in))
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """(name, make) -> the folder of that name; `make(folder)` fills it once, for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name, make):
        path = base / f"shared-{name}"
        if not path.exists():
            part = tmp_path_factory.mktemp("part") / name
            make(part)
            try:
                part.rename(path)
            except OSError:  # another worker was faster
                shutil.rmtree(part)
        return path

    return folder


@pytest.fixture(scope="session")
def tiny_bundle(shared_folder):
    """FP32 and FP16 graphs, verdicts, golden and Polygraphy's files, no engine; its report has no figures."""
    from blockforge.pipeline import build

    def make(folder):
        with no_figures():
            build(RECIPE, folder)

    return Bundle.open(shared_folder("tiny", make))


@pytest.fixture(scope="session")
def fits_schema():
    """Checks JSON of a command against the schema that `blockforge --schema` prints."""
    from functools import cache

    import jsonschema

    from blockforge.schemas import schema_of

    @cache
    def validator(name):
        return jsonschema.Draft202012Validator(schema_of(name))

    return lambda name, body: validator(name).validate(body)


@pytest.fixture(scope="session")
def tiny():
    """Everything about the tiny decoder that a test needs."""

    class Everything:
        fault, model, runner = Fault, Tiny, TorchRunner
        inputs = INPUTS
        outputs = (TensorRecord(name="logits", dtype="fp32", dims=("batch", "sequence", VOCAB)),)
        cases = build_cases(
            INPUTS,
            {"input_ids": ShapeRange((1, 1), (1, 24), (4, 48))},
            InputPlan(window=40),
            vocab_size=VOCAB,
            tokens=torch.randint(VOCAB, (80,), generator=torch.Generator().manual_seed(2)),
        )
        load = staticmethod(load)

        @classmethod
        def truth(cls, load=load, cases=None):
            outputs = (cls.outputs[0].model_copy(update={"dtype": DType.FP64.value}),)
            return compute_truth(load, outputs, cases or cls.cases, vocabulary="logits")

    return Everything
