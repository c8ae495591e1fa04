"""The PyTorch reference under the clock: eager or torch.compile, on the CPU or the current CUDA device."""

import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from ...core.errors import BuildError, UnavailableError
from ..reference import cast_floats
from .workload import CLOCKS, CallWorkload, Clock, Feeds

Mode = Literal["eager", "compile"]


def module_workload(
    label: str,
    module: nn.Module,
    mode: Mode,
    names: Sequence[str],
    clock: tuple[str, Clock] = CLOCKS["wall"],
) -> CallWorkload:
    """`module` on the CPU. names: of its inputs, in the order of forward; floats are cast to its type.

    torch.compile starts anew for every set of inputs and compiles for their sizes, which the first call pays.
    """
    dtype = next(module.parameters()).dtype

    def bind(feeds: Feeds) -> Callable[[], object]:
        given = [cast_floats(feeds[name], dtype) for name in names]
        forward = compiled(label, module, given) if mode == "compile" else module

        def call() -> object:
            with torch.inference_mode():
                return forward(*given)

        return call

    return CallWorkload(label, bind, clock)


def compiled(label: str, module: nn.Module, given: Sequence[torch.Tensor]) -> Callable[..., object]:
    """torch.compile of the module for these sizes; the first call raises BuildError where it cannot compile."""
    torch.compiler.reset()  # beyond eight sizes it would run eagerly without a word
    fast = torch.compile(module, dynamic=False)
    done = False

    def forward(*tensors: torch.Tensor) -> object:
        nonlocal done
        if done:
            return fast(*tensors)
        try:
            with warnings.catch_warnings():  # about what it traces
                warnings.simplefilter("ignore")
                result = fast(*tensors)
        except Exception as error:  # the compiler's stages share no base
            words = " ".join(str(error).split())
            raise BuildError(
                label,
                found=f"torch.compile fails: {words[:400]}",
                fix="It needs a C++ compiler on the CPU and Triton on a GPU",
            ) from None
        done = True
        return result

    return forward


class CudaModuleWorkload:
    """`module` on the current CUDA device, between two CUDA events; UnavailableError without one."""

    clock = "CUDA events"

    def __init__(self, label: str, module: nn.Module, mode: Mode, names: Sequence[str]) -> None:
        if not torch.cuda.is_available():
            raise UnavailableError(
                label,
                found=f"torch {torch.__version__} finds no CUDA device",
                fix="Install torch's CUDA build on a machine with an NVIDIA GPU",
            )
        self.label, self._mode, self._names = label, mode, tuple(names)
        self._module = module.to("cuda")
        self._dtype = next(module.parameters()).dtype
        self._forward: Callable[..., object] = self._module
        self._given: list[torch.Tensor] = []

    def prepare(self, feeds: Feeds) -> None:
        """Upload the inputs."""
        self._given = [cast_floats(feeds[name], self._dtype).cuda() for name in self._names]
        if self._mode == "compile":
            self._forward = compiled(self.label, self._module, self._given)
        torch.cuda.synchronize()

    def time(self) -> float:
        """Seconds of one forward pass on the GPU's stream, the launches of its kernels included."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.inference_mode():
            start.record()
            self._forward(*self._given)
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def close(self) -> None:
        """Let go of the inputs; the module goes with its last owner."""
        self._given = []
        self._forward = self._module
