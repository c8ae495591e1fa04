"""A deserialised engine: what it takes and gives, and execution contexts of it."""

import threading
from typing import Any

from ...core.errors import ArtefactError, BuildError, UsageError
from ...core.manifest import TensorRecord
from ...core.shapes import Shape
from ..tensorrt_api import Api
from ..tensorrt_session import Loaded, profile_at, tensor_record


class Engine:
    """One engine for every context of a session. graphs: whether its contexts will be captured."""

    def __init__(self, loaded: Loaded, api: Api, asked: str, *, graphs: bool) -> None:
        """Read inputs, outputs and profiles; UsageError for what sessions do not serve: tensors in host memory."""
        self.loaded, self.api, self.asked, self._graphs = loaded, api, asked, graphs
        self.handle: Any = loaded.engine
        self._lock = threading.Lock()
        for name in (*loaded.inputs, *loaded.outputs):
            if self.handle.get_tensor_location(name) != api.trt.TensorLocation.DEVICE:
                raise UsageError(
                    asked,
                    found=f"{name!r} is a shape tensor, which TensorRT reads in host memory",
                    fix="Build a graph whose shapes follow from its inputs' shapes",
                )
        self.inputs, self.outputs = (
            tuple(tensor_record(self.handle, name, asked) for name in names)
            for names in (loaded.inputs, loaded.outputs)
        )
        self.profiles = tuple(
            profile_at(self.handle, self.inputs, index)
            for index in range(self.handle.num_optimization_profiles)
        )
        self.aliases = self._aliases()
        self.stripped = self._is_stripped()
        self._config: Any = self._runtime_config()

    @property
    def scratch_bytes(self) -> int:
        """Device memory that one run needs besides its inputs and outputs."""
        return int(self.handle.device_memory_size_v2)

    def create_context(self, scratch: int) -> Any:
        """An execution context that works in the `scratch_bytes` at address `scratch`.

        Raises UsageError for a plan without weights that was given none, BuildError when TensorRT cannot make one.
        """
        if self.stripped:
            raise UsageError(
                f"run of {self.asked}",
                found="the plan was built with strip_plan: it carries no weights",
                fix="Give it all of them with Session.refit first",
            )
        strategy = self.api.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        with self._lock:
            self.loaded.words.clear()
            if self._config is None:
                context = self.handle.create_execution_context(strategy)
            else:
                context = self.handle.create_execution_context(self._config)
        if context is None:
            raise BuildError(f"execution context of {self.asked}", found=self.said())
        context.set_device_memory(scratch, self.scratch_bytes)
        return context

    def said(self) -> str:
        """TensorRT's latest complaints."""
        return self.loaded.said()

    def close(self) -> None:
        """Drop configuration, engine and runtime, in this order, when no context is left."""
        self._config = self.handle = None
        self.loaded.close()

    def _aliases(self) -> dict[str, str]:
        """Output -> the input whose memory it shares (a KV cache that is updated in place)."""
        if not hasattr(self.handle, "get_aliased_input_tensor"):
            return {}
        pairs = {n: self.handle.get_aliased_input_tensor(n) for n in self.loaded.outputs}
        return {output: source for output, source in pairs.items() if source}

    def _is_stripped(self) -> bool:
        stat = self.api.trt.EngineStat.STRIPPED_WEIGHTS_SIZE
        return bool(self.handle.get_engine_stat(stat) > 0)

    def _runtime_config(self) -> Any:
        """TensorRT-RTX: one cache of compiled kernels for all contexts; shapes specialised before capture."""
        if "runtime_config" not in self.api.features:
            return None
        config = self.handle.create_runtime_config()
        if not hasattr(config, "create_runtime_cache"):
            return None
        trt = self.api.trt
        config.set_execution_context_allocation_strategy(
            trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        config.set_runtime_cache(config.create_runtime_cache())
        if self._graphs:  # a graph would keep the fallback kernels for ever
            config.dynamic_shapes_kernel_specialization_strategy = (
                trt.DynamicShapesKernelSpecializationStrategy.EAGER
            )
        return config


def check_records(
    engine: Engine, inputs: tuple[TensorRecord, ...], outputs: tuple[TensorRecord, ...], asked: str
) -> None:
    """Raise ArtefactError where the engine takes or gives something else than the manifest says."""
    for what, records, found in (
        ("input", inputs, engine.inputs),
        ("output", outputs, engine.outputs),
    ):
        has = {record.name: record for record in found}
        for record in records:
            other = has.pop(record.name, None)
            if other is None or not _same(record, other):
                said = "it is missing" if other is None else f"the engine has {_text(other)}"
                raise ArtefactError(
                    asked,
                    found=f"{what} {_text(record)} of the manifest: {said}",
                    fix="Engine and manifest are of different graphs: compile the bundle again",
                )
        if has:
            raise ArtefactError(
                asked, found=f"{what} {next(iter(has))!r} of the engine is not in the manifest"
            )


def _same(record: TensorRecord, other: TensorRecord) -> bool:
    return (
        record.dtype == other.dtype
        and len(record.dims) == len(other.dims)
        and all(
            a == b
            for a, b in zip(record.dims, other.dims, strict=True)
            if isinstance(a, int) and isinstance(b, int)
        )
    )


def _text(record: TensorRecord) -> str:
    return f"{record.name} ({record.dtype}, {'x'.join(map(str, record.dims)) or 'scalar'})"


def resolved(shape: Shape) -> bool:
    """Whether every size is known."""
    return all(size >= 0 for size in shape)
