"""A Triton model's config.pbtxt, from a bundle's variant and one target of it.

Triton's documentation, Model Configuration; the fields are those of model_config.proto. The first part of the file, SIGNATURE,
belongs to every version of the model: a version that does not share it needs a model of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import UsageError
from ...core.manifest import TensorRecord, VariantRecord
from ..target import Target
from .batching import Batching
from .pbtxt import Word, to_pbtxt
from .triton_warmup import WarmUp
from .wire_types import check_backend_types, wire_name


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of Triton: its name, the platform that goes with it, and what it calls the model's file."""

    name: str
    platform: str
    file: str


ONNXRUNTIME = Backend("onnxruntime", "onnxruntime_onnx", "model.onnx")
TENSORRT = Backend("tensorrt", "tensorrt_plan", "model.plan")
NO_REWRITES = (
    2  # its onnxruntime backend's name for ORT_DISABLE_ALL; it has none for disable_quant_qdq alone
)


@dataclass(frozen=True, slots=True)
class TritonModel:
    """What decides a config.pbtxt.

    runtime: what built or ran the engine, e.g. "tensorrt 11.4.0". delay: microseconds that a request may wait for
    others. instances: copies of the model on each device. rewritten: whether ONNX Runtime may optimise the graph.
    """

    name: str
    variant: VariantRecord
    target: Target
    runtime: str
    batching: Batching
    warm_ups: tuple[WarmUp, ...] = ()
    instances: int = 1
    delay: int = 100
    rewritten: bool = True

    @property
    def backend(self) -> Backend:
        return backend_of(self.target)


def backend_of(target: Target) -> Backend:
    """Triton's backend for `target`; UsageError for TensorRT-RTX, whose engines no backend of Triton loads."""
    if target.runtime == "tensorrt-rtx":
        raise UsageError(
            f"Triton model of {target}",
            found="Triton's tensorrt backend loads plans of full TensorRT (it links libnvinfer); an engine of "
            "TensorRT-RTX is another format, and Triton has no backend for it",
            fix="Pack onnxruntime:cpu, onnxruntime:cuda, or tensorrt:smXX, compiled on that GPU",
        )
    return TENSORRT if target.is_tensorrt else ONNXRUNTIME


def config_text(model: TritonModel) -> str:
    """The whole config.pbtxt; see signature_text for what it may raise."""
    config: dict[str, Any] = {}
    batching = model.batching
    if batching.joined == batching.limit > 1:  # else Triton would join what no profile holds
        preferred = sorted({*batching.usual, batching.limit} - {1})
        config["dynamic_batching"] = {
            "preferred_batch_size": preferred,
            "max_queue_delay_microseconds": model.delay,
        }
    gpu = model.target.device != "cpu"
    group = {"count": model.instances, "kind": Word("KIND_GPU" if gpu else "KIND_CPU")}
    if model.backend is TENSORRT:
        group["profile"] = profiles_of(model)
    config["instance_group"] = [group]
    if not model.rewritten:
        config["optimization"] = {"graph": {"level": NO_REWRITES}}
    config["version_policy"] = {"latest": {"num_versions": 1}}
    config["model_transaction_policy"] = {"decoupled": False}
    config["model_warmup"] = [warm_up.entry for warm_up in model.warm_ups]
    facts = {"precision": model.variant.precision, "target": model.target, "runtime": model.runtime}
    config["parameters"] = [
        {"key": f"blockforge.{key}", "value": {"string_value": str(value)}}
        for key, value in facts.items()
    ]
    return signature_text(model) + to_pbtxt(config)


def profiles_of(model: TritonModel) -> list[str]:
    """The profiles of an engine as Triton names them: it runs a request with the one that fits best."""
    return [str(index) for index in range(len(model.variant.profiles))]


def signature_text(model: TritonModel) -> str:
    """The part of the configuration that all versions of a model share.

    Raises UsageError for a type that the backend does not take and for scalars, which Triton does not either.
    """
    backend, variant = model.backend, model.variant
    check_backend_types((*variant.inputs, *variant.outputs), backend.name)
    return to_pbtxt(
        {
            "name": model.name,
            "backend": backend.name,
            "platform": backend.platform,
            "default_model_filename": backend.file,
            "max_batch_size": model.batching.limit,
            "input": _tensors(variant.inputs, batched=model.batching.limit > 0),
            "output": _tensors(variant.outputs, batched=model.batching.limit > 0),
        }
    )


def _tensors(records: Sequence[TensorRecord], *, batched: bool) -> list[dict[str, Any]]:
    return [_tensor(record, batched) for record in records]


def _tensor(record: TensorRecord, batched: bool) -> dict[str, Any]:
    axes = record.dims[1:] if batched else record.dims
    dims = [axis if isinstance(axis, int) else -1 for axis in axes]
    field: dict[str, Any] = {
        "name": record.name,
        "data_type": Word(f"TYPE_{wire_name(record)}"),
        "dims": dims or [1],
    }
    if not axes:
        if not batched:
            raise UsageError(
                f"tensor {record.name!r} of a Triton model",
                found="a scalar: Triton takes tensors of one axis or more",
                fix="Export it with one axis",
            )
        field["reshape"] = {"shape": []}  # the client's [batch, 1] is the model's [batch]
    return field
