"""The least time that a named GPU's peak rates and bandwidth allow for one forward pass: model/cost.py, by the GPU's own name."""

from collections.abc import Callable

from ...core.errors import BlockforgeError, UsageError
from ...engines.gpu import gpus
from ...model.config import ModelConfig
from ...model.cost import cost
from .opening import Reference
from .sides import GraphSide, Side

FORMATS = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8_e4m3"}
# words that the driver's name of a GPU holds -> its name in model/gpus.py; the first that fits counts
NAMES = (
    (("A100", "40GB"), "a100-40"),
    (("A100", "PCI", "80GB"), "a100-80-pcie"),
    (("A100", "80GB"), "a100-80"),
    (("H100", "PCI"), "h100-pcie"),
    (("H100", "HBM3"), "h100-sxm"),
    (("H200",), "h200"),
    (("B200",), "b200"),
    (("L40S",), "l40s"),
    (("RTX 4090",), "rtx-4090"),
    (("RTX 5090",), "rtx-5090"),
    (("L4",), "l4"),
)


def gpu_name(driver_name: str) -> str | None:
    """The table's name for `NVIDIA H100 80GB HBM3`; None for a GPU that the table lacks."""
    tokens = driver_name.replace("-", " ").split()
    for words, name in NAMES:
        if all(_holds(driver_name, tokens, word) for word in words):
            return name
    return None


def _holds(driver_name: str, tokens: list[str], word: str) -> bool:
    """A whole word, PCIe by its beginning; an RTX without the suffix of a laptop's or another chip."""
    if word.startswith("RTX"):
        return driver_name.endswith(word)
    return any(t == word or (word == "PCI" and t.startswith(word)) for t in tokens)


def least_seconds(
    config: ModelConfig, *, driver_name: str, precision: str, batch: int, sequence: int
) -> float | None:
    """Seconds of a prefill; None where the GPU or the format has no published rate."""
    gpu, number_format = gpu_name(driver_name), FORMATS.get(precision)
    if gpu is None or number_format is None:
        return None
    try:
        found = cost(config, batch=batch, sequence=sequence, dtype=number_format, gpu=gpu)
    except UsageError:  # a format that this GPU's tensor cores lack
        return None
    return found.seconds


class Rooflines:
    """Opens the model's configuration at most once, and only where a GPU computed. notes: why there is none."""

    def __init__(self, reference: Callable[[], Reference]) -> None:
        self.notes: tuple[str, ...] = ()
        self._reference = reference
        self._found: Reference | None = None
        self._tried = False

    def share(
        self, side: Side, batch: int | None, sequence: int | None, seconds: float
    ) -> float | None:
        """Least time over `seconds`; None on a CPU, for one block, and where no rate is published."""
        device = side.target.device if isinstance(side, GraphSide) else side.device
        here = () if device == "cpu" else gpus()
        if not here or batch is None or sequence is None:
            return None
        source = self._open()
        if source is None or source.layer is not None:
            return None
        least = least_seconds(
            source.config,
            driver_name=here[0].name,
            precision=side.precision,
            batch=batch,
            sequence=sequence,
        )
        return None if least is None else least / seconds

    def _open(self) -> Reference | None:
        if not self._tried:
            self._tried = True
            try:
                self._found = self._reference()
            except BlockforgeError as error:
                self.notes = (f"no roofline: {error}",)
        return self._found
