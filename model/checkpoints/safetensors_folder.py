"""A Hugging Face folder: config.json, and safetensors in one file or in shards with an index."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from ...core.errors import ArtefactError, UsageError
from ..config import ModelConfig
from ..fields import Fields
from ..skeleton import parameter_shapes
from ..tokenizer import tokenizer_from_json
from .dialect import Dialect, as_stored
from .hf_config import config_from_hf
from .protocol import as_finite, check_names, require_name

if TYPE_CHECKING:
    import tokenizers

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a tensor lies."""

    file: Path
    name: str
    dtype: str  # safetensors' name for it
    shape: tuple[int, ...]
    index: int | None = None  # which expert's


@dataclass(frozen=True)
class FolderCheckpoint:
    """Weights of a Hugging Face folder; opened by open_folder."""

    source: str
    config: ModelConfig
    folder: Path
    dialect: Dialect
    tensors: dict[str, tuple[_Stored, ...]]  # parts, of which experts have one each

    def names(self) -> list[str]:
        """Our parameter names, in the module's order."""
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of parameter `name`, from the header; UsageError for an unknown name."""
        require_name(self.source, name, self.names())
        return _shape(name, self.tensors[name], self.dialect, self.config)

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Parameter `name` in `dtype`; see Checkpoint.read for the errors."""
        require_name(self.source, name, self.names())
        parts = [self._part(name, stored, dtype) for stored in self.tensors[name]]
        return torch.stack(parts) if _is_stacked(self.tensors[name]) else parts[0]

    def _part(self, name: str, stored: "_Stored", dtype: torch.dtype) -> torch.Tensor:
        """One stored tensor in our layout, converted and checked. Layouts that compute do so in float32 or wider."""
        with _open(stored.file) as file:
            tensor: torch.Tensor = file.get_tensor(stored.name)
        if self.dialect.layout is not as_stored:
            wide = torch.promote_types(torch.float32, dtype)
            tensor = self.dialect.layout(tensor.to(wide), name, self.config)
        return as_finite(tensor, dtype, name, self.source)

    def tokenizer(self) -> "tokenizers.Tokenizer | None":
        """tokenizer.json of the folder, None where it has none; ArtefactError when it is damaged."""
        file = self.folder / "tokenizer.json"
        return tokenizer_from_json(file) if file.is_file() else None


def open_folder(folder: Path, source: str) -> FolderCheckpoint:
    """Open a folder, reading headers only.

    Raises UsageError when a part is missing or not supported, ArtefactError when a file is damaged or the
    tensors are not those of the configuration.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"checkpoint {source}",
            found="the folder has no config.json",
            fix="Name a Hugging Face folder with config.json and *.safetensors, or a .gguf file",
        )
    config_file = f"{source}/config.json"
    fields = Fields(config_file, _read_json(folder / "config.json", config_file))
    config, dialect = config_from_hf(fields)
    placed: dict[str, list[_Stored]] = {}
    for tensor in _headers(folder, source):
        place = dialect.place(tensor.name)
        if place is not None:
            _check_type(tensor)
            placed.setdefault(place.name, []).append(replace(tensor, index=place.index))
    stored = {name: _ordered(name, parts, source) for name, parts in placed.items()}
    shapes = {name: _shape(name, parts, dialect, config) for name, parts in stored.items()}
    check_names(source, config, shapes, {name: parts[0].name for name, parts in stored.items()})
    ordered = {name: stored[name] for name in parameter_shapes(config)}
    return FolderCheckpoint(source, config, folder, dialect, ordered)


def _check_type(tensor: _Stored) -> None:
    """ArtefactError for a type that holds no plain weights."""
    if tensor.dtype not in _FLOATS:
        raise ArtefactError(
            str(tensor.file),
            found=f"{tensor.name} has type {tensor.dtype}",
            fix=f"Weights are one of {', '.join(_FLOATS)}",
        )


def _ordered(name: str, parts: list[_Stored], source: str) -> tuple[_Stored, ...]:
    """The parts by index; ArtefactError where one is missing, doubled or of another shape."""
    ordered = sorted(parts, key=lambda part: part.index or 0)
    wanted: list[int | None] = list(range(len(parts)))
    if parts[0].index is None:
        wanted = [None]
    if [part.index for part in ordered] != wanted or len({part.shape for part in parts}) > 1:
        raise ArtefactError(
            f"weights of {source}",
            found=f"{name} comes from {', '.join(part.name for part in ordered[:4])}",
            fix="Each expert has one tensor, and all have one shape",
        )
    return tuple(ordered)


def _is_stacked(parts: tuple[_Stored, ...]) -> bool:
    return parts[0].index is not None


def _shape(
    name: str, parts: tuple[_Stored, ...], dialect: Dialect, config: ModelConfig
) -> tuple[int, ...]:
    """The shape in our layout."""
    shape = dialect.shape(name, parts[0].shape, config)
    return (len(parts), *shape) if _is_stacked(parts) else shape


def _read_json(path: Path, printable: str) -> dict[str, Any]:
    """The object in a JSON file; ArtefactError when it is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtefactError(printable, found=f"not readable as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ArtefactError(printable, found=f"a JSON {type(value).__name__}, not an object")
    return value


def _headers(folder: Path, source: str) -> list[_Stored]:
    """Every tensor of the folder, once."""
    if (folder / INDEX).is_file():
        return _indexed(folder, source)
    files = (
        [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    )
    if not files:
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        raise UsageError(
            f"checkpoint {source}",
            found="the folder has no *.safetensors",
            fix="Pickled weights are not read: convert them to safetensors" if pickled else "",
        )
    tensors = [tensor for file in files for tensor in _header(file)]
    names = [tensor.name for tensor in tensors]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArtefactError(
            f"checkpoint {source}",
            found=f"{twice[0]} is in more than one file and there is no {INDEX}",
            fix="Keep the files of one checkpoint only",
        )
    return tensors


def _indexed(folder: Path, source: str) -> list[_Stored]:
    """The tensors that the index places, each found where the index says."""
    printable = f"{source}/{INDEX}"
    places = _read_json(folder / INDEX, printable).get("weight_map")
    if not isinstance(places, dict):
        raise ArtefactError(printable, found="no weight_map")
    found: dict[str, dict[str, _Stored]] = {}
    tensors = []
    for name, shard in places.items():
        if not isinstance(shard, str) or Path(shard).name != shard or "\\" in shard:
            raise ArtefactError(
                printable,
                found=f"{name} lies in {shard!r}, outside the folder",
                fix="Shards are plain file names in the folder of the index",
            )
        if not (folder / shard).is_file():
            raise ArtefactError(f"checkpoint {source}", found=f"shard {shard} is missing")
        if shard not in found:
            found[shard] = {tensor.name: tensor for tensor in _header(folder / shard)}
        if name not in found[shard]:
            raise ArtefactError(printable, found=f"{name} is not in {shard}")
        tensors.append(found[shard][name])
    return tensors


def _header(file: Path) -> list[_Stored]:
    """Names, types and shapes of one safetensors file."""
    tensors = []
    with _open(file) as opened:
        for name in opened.keys():  # noqa: SIM118
            view = opened.get_slice(name)
            tensors.append(_Stored(file, name, view.get_dtype(), tuple(view.get_shape())))
    return tensors


def _open(file: Path) -> Any:
    """Map a safetensors file; ArtefactError when its header or its length is wrong."""
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ArtefactError(
            str(file), found=f"not a whole safetensors file ({error})", fix="Copy the file again"
        ) from None
