"""What a checkpoint is to the rest: a configuration, and tensors under our names, read one at a time."""

from typing import TYPE_CHECKING, Protocol

import torch

from ...core.errors import ArtefactError, UsageError
from ..config import ModelConfig
from ..skeleton import parameter_shapes

if TYPE_CHECKING:
    import tokenizers

_LISTED = 8  # names that an error lists of each kind


class Checkpoint(Protocol):
    """Weights that a module can be loaded from; see open_checkpoint and preset_checkpoint."""

    @property
    def source(self) -> str:
        """Where the weights come from, printable."""

    @property
    def config(self) -> ModelConfig:
        """The model that the weights belong to."""

    def names(self) -> list[str]:
        """Our parameter names, in the module's order; a tied head has no lm_head.weight."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that read(name) returns; reads no weight. UsageError for an unknown name."""

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """One tensor in torch's layout ([out, in] for a linear), dequantised, on the CPU.

        Raises UsageError for an unknown name, ArtefactError when the tensor holds NaN or infinity or a
        value that `dtype` cannot hold.
        """

    def tokenizer(self) -> "tokenizers.Tokenizer | None":
        """The tokenizer stored with the weights, None where there is none."""


def check_names(
    source: str,
    config: ModelConfig,
    found: dict[str, tuple[int, ...]],
    stored_as: dict[str, str] | None = None,
) -> None:
    """Raise one ArtefactError that lists missing tensors, unknown ones and wrong shapes.

    found: name -> shape under our names; stored_as: our name -> the name in the file, for the message.
    """
    stored_as = stored_as or {}
    wanted = parameter_shapes(config)
    missing = [name for name in wanted if name not in found]
    unknown = [stored_as.get(name, name) for name in found if name not in wanted]
    wrong = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in wanted.items()
        if found.get(name, shape) != shape
    ]
    faults = (("missing", missing), ("unknown", unknown), ("wrong shape", wrong))
    if not any(names for _, names in faults):
        return
    raise ArtefactError(
        f"weights of {source}",
        found="; ".join(f"{fault}: {_listed(names)}" for fault, names in faults if names),
        fix="The tensors must be exactly those of the configuration",
    )


def require_name(source: str, name: str, names: list[str]) -> None:
    """Raise UsageError, with a few names that exist, unless `name` is one of `names`."""
    if name not in names:
        raise UsageError(
            f"tensor {name!r} of {source}", found="no such tensor", fix=f"It has {_listed(names)}"
        )


def _listed(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def as_finite(tensor: torch.Tensor, dtype: torch.dtype, name: str, source: str) -> torch.Tensor:
    """Convert a freshly read tensor to `dtype` and check it, in one further pass over it.

    Raises ArtefactError naming the tensor when it holds NaN or infinity, or a finite value beyond the
    range of `dtype`.
    """
    converted = tensor.to(dtype)
    if all(torch.isfinite(extreme) for extreme in torch.aminmax(converted)):  # NaN passes through
        return converted
    bad = tensor.numel() - int(torch.isfinite(tensor).sum())
    if bad:
        found = f"{name} holds {bad} values that are NaN or infinite, of {tensor.numel()}"
        raise ArtefactError(f"weights of {source}", found=found, fix="The checkpoint is damaged")
    largest, limit = float(tensor.abs().max()), torch.finfo(dtype).max
    raise ArtefactError(
        f"weights of {source} as {str(dtype).removeprefix('torch.')}",
        found=f"{name} holds {largest:.4g}, beyond the type's largest value {limit:.4g}",
        fix="Choose a wider precision",
    )
