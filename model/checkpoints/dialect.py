"""How one kind of file spells a model: stored tensor names -> ours, stored layouts -> torch's.

Everything about names and layouts that differs between files is a Dialect; the files' readers know none of it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..config import ModelConfig

UNKNOWN = "? "  # starts no parameter name


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stored tensor belongs: a parameter of ours, or (index) one expert's part of it."""

    name: str
    index: int | None = None


Rules = Sequence[
    tuple[str, str | None]
]  # pattern of a stored name -> ours; None: it carries nothing
Layout = Callable[[torch.Tensor, str, ModelConfig], torch.Tensor]  # (stored, our name, config)


def as_stored(tensor: torch.Tensor, name: str, config: ModelConfig) -> torch.Tensor:
    """The layout of most files: torch's own."""
    return tensor


@dataclass(frozen=True, slots=True)
class Dialect:
    """rules: tried in turn on the whole stored name; a group named `expert` gives the index of a Place.

    layout: brings one tensor into ours.
    """

    rules: Rules
    layout: Layout = as_stored

    def place(self, stored: str) -> Place | None:
        """Where `stored` belongs; None for a tensor that carries nothing of its own.

        An unknown name gets a place that is none of ours, for check_names to refuse.
        """
        for pattern, ours in self.rules:
            match = re.fullmatch(pattern, stored)
            if match is None:
                continue
            if ours is None:
                return None
            expert = match.groupdict().get("expert")
            return Place(match.expand(ours), None if expert is None else int(expert))
        return Place(UNKNOWN + stored)

    def shape(self, name: str, stored: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
        """The shape that a stored one has in our layout; the stored one where it does not fit at all."""
        try:
            return tuple(self.layout(torch.empty(stored, device="meta"), name, config).shape)
        except (RuntimeError, IndexError):  # a wrong shape: check_names says so
            return stored
