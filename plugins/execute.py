"""Run a kernel on tensors: on a GPU, or on the CPU in a process that interprets Triton (interpreter.py).

The same checks, launch and arguments that the ahead-of-time path uses.
"""

from collections.abc import Mapping, Sequence
from math import prod

import torch

from ..core.dtypes import dtype_from_torch
from .aot import FP_FUSION, kernel_constants, plan_launch
from .checks import Given, check_attributes, check_call, output_dtypes
from .launch import Launch
from .registry import Plugin
from .shapes import output_shapes
from .table import AttributeValue
from .triton_api import require_triton


def empty_outputs(
    plugin: Plugin, inputs: Sequence[torch.Tensor], attributes: Mapping[str, AttributeValue]
) -> tuple[torch.Tensor, ...]:
    """Check the call and return its outputs, uninitialised, where the first input lives."""
    given = [Given(dtype_from_torch(t.dtype), tuple(t.shape), t.stride()) for t in inputs]
    sizes = check_call(plugin.table, given, attributes)
    filled = check_attributes(plugin.table, attributes)
    return tuple(
        torch.empty(shape, dtype=dtype.torch, device=inputs[0].device)
        for shape, dtype in zip(
            output_shapes(plugin.table, sizes, filled),
            output_dtypes(plugin.table, [g.dtype for g in given]),
            strict=True,
        )
    )


def run_kernel(
    plugin: Plugin,
    inputs: Sequence[torch.Tensor],
    attributes: Mapping[str, AttributeValue],
    arch: int = 90,
) -> tuple[torch.Tensor, ...]:
    """The outputs of the kernel as it would be launched on compute capability arch / 10.

    Raises UsageError for inputs that the operator's table refuses, UnavailableError without Triton.
    """
    outputs = empty_outputs(plugin, inputs, attributes)
    filled = check_attributes(plugin.table, attributes)
    given = [Given(dtype_from_torch(t.dtype), tuple(t.shape)) for t in inputs]
    sizes = check_call(plugin.table, given, filled)
    launch = plan_launch(plugin, given[0].dtype, sizes, filled, arch)
    rows = prod(inputs[0].shape[:-1])
    launch_kernel(plugin, inputs, (rows,), outputs, launch, filled, launch.grid(rows))
    return outputs


def launch_kernel(
    plugin: Plugin,
    inputs: Sequence[torch.Tensor],
    extras: Sequence[int],
    outputs: Sequence[torch.Tensor],
    launch: Launch,
    attributes: Mapping[str, AttributeValue],
    grid: int,
) -> None:
    """One launch with the arguments in TensorRT's order: inputs, extra integers, outputs."""
    require_triton()
    plugin.kernel[(grid,)](
        *inputs,
        *extras,
        *outputs,
        **kernel_constants(attributes, launch),
        num_warps=launch.warps,
        num_stages=1,
        enable_fp_fusion=FP_FUSION,
    )
