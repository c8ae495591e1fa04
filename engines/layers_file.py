"""`<slug>.layers.json`: a planned engine as data, for inspect, the report and checks.

    {"schema_version": 1, "target": "tensorrt-rtx:sm89", "runtime": "tensorrt-rtx 1.7.1.116", "source": "builder",
     "num_blocks": 30, "options": {build options that are not the default}, "kernels": [{"name", "type", "tactic", "stream", "nodes": [ONNX node names],
     "inputs"/"constants"/"outputs": [{"name", "dtype", "dims": [-1 where dynamic]}]}, ...]}

source "builder": TensorRT's planned kernels. "profiler": the nodes ONNX Runtime ran after its own optimisations.
Kernels stand in execution order.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..core.errors import ArtefactError
from .kernel import Kernel
from .plan import device_kernels, dtype_census, kernels_per_block


class LayersFile(BaseModel):
    """The content of one layers.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    target: str
    runtime: str
    source: Literal["builder", "profiler"]
    num_blocks: int
    options: dict[str, Any] = Field(default_factory=dict)
    kernels: tuple[Kernel, ...]

    @property
    def device_kernels(self) -> int | None:
        """Kernel launches on the device; None for nodes of ONNX Runtime, which are no kernels."""
        return device_kernels(self.kernels) if self.source == "builder" else None

    @property
    def kernels_per_block(self) -> float | None:
        """Kernel launches one block costs; None where there are no blocks or no kernels."""
        return (
            kernels_per_block(self.kernels, self.num_blocks) if self.source == "builder" else None
        )

    @property
    def dtypes(self) -> dict[str, int]:
        """Element type -> kernels (or nodes) that compute in it."""
        return dtype_census(self.kernels)


def save_layers(layers: LayersFile, path: Path) -> None:
    """Write `layers` to `path`, one kernel a line."""
    head = layers.model_dump(exclude={"kernels"})
    adapter = TypeAdapter(dict)
    lines = ",\n  ".join(adapter.dump_json(asdict(k)).decode() for k in layers.kernels)
    text = adapter.dump_json(head).decode().removesuffix("}")
    path.write_text(f'{text},"kernels":[\n  {lines}\n]}}\n', encoding="utf-8")


def load_layers(path: str | Path) -> LayersFile:
    """Read a layers.json; ArtefactError says what does not fit."""
    try:
        return LayersFile.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ArtefactError(
            f"kernels of {path}", found=f"cannot read it: {error.strerror}"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ArtefactError(
            f"kernels of {path}",
            found=f"{where}: {first['msg']}",
            fix="This version reads schema 1: compile the bundle again",
        ) from None
