"""Shared helpers: graphs written as ONNX text, and runs of them."""

import sys
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
import torch

from blockforge.graph.evaluator import Evaluation, TypedEvaluator

sys.path.insert(0, str(Path(__file__).parent))  # attention_cases

Evaluate = Callable[..., Evaluation]


@pytest.fixture
def evaluate() -> Evaluate:
    """Run `body` (ONNX text after the header) at `opset` on the feeds."""

    def run(
        body: str,
        feeds: dict[str, torch.Tensor],
        *,
        opset: int = 24,
        exact: bool = False,
        keep: tuple[str, ...] = (),
        domains: str = "",
    ) -> Evaluation:
        text = f'<ir_version: 11, opset_import: ["" : {opset}{domains}]> {body}'
        return TypedEvaluator(ir.from_onnx_text(text), exact=exact).run(feeds, keep)

    return run
