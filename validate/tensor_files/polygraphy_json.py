"""Polygraphy's JSON (0.53): inputs as `polygraphy run --save-inputs` writes them, RunResults as `--save-outputs` does.

    inputs      {name: array} or a list of such
    RunResults  {"lst": [[runner, [{"outputs": {name: {"values": array}}, "runtime": s, "runner_name": r}]]]}
    array       {"array": base64 of .npy} or, for bf16 and fp8, {"tensor": base64 of torch.save}

Read by hand and checked part by part: Polygraphy itself hands the tensors to torch.load.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import ArtefactError, UsageError
from .npz import array_from_npy, npy_from_array
from .numbers import FOREIGN, unique
from .torch_archive import array_from_torch, torch_from_array

KIND = "polygraphy_class"
Tensors = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class RunnerOutputs:
    """What one runner gave: outputs and seconds, iteration by iteration."""

    runner: str
    outputs: tuple[Tensors, ...]
    seconds: tuple[float | None, ...]


def load_json(path: Path, runner: str | None = None) -> list[Tensors]:
    """The sets of tensors in a file of inputs or RunResults.

    runner: whose outputs, needed where the RunResults hold those of several. Raises ArtefactError for a file
    that holds neither, UsageError for a runner that is not there.
    """
    asked, body = f"tensors in {path}", _read(path)
    if isinstance(body, dict) and body.get(KIND) == "RunResults":
        found = _run_results(body, asked)
        names = [entry.runner for entry in found]
        if runner is None and len(found) != 1:
            fix = "Choose one of them by its name"
            raise UsageError(asked, found=f"outputs of {len(found)} runners: {names}", fix=fix)
        if runner is not None and runner not in names:
            raise UsageError(f"runner {runner!r} in {path}", found=f"the file has {names}")
        return list(found[0 if runner is None else names.index(runner)].outputs)
    if runner is not None:
        raise UsageError(f"runner {runner!r} in {path}", found="the file holds inputs")
    sets = body if isinstance(body, list) else [body]
    return [_tensors(entry, f"set {at} in {path}") for at, entry in enumerate(sets)]


def load_run_results(path: str | Path) -> tuple[RunnerOutputs, ...]:
    """Every runner of a RunResults file; UsageError without the file, ArtefactError for anything else in it."""
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"results {path}", found="no such file", fix="Name a saved RunResults")
    asked, body = f"results {path}", _read(path)
    if not isinstance(body, dict) or body.get(KIND) != "RunResults":
        fix = "`polygraphy run ... --save-outputs RESULTS.json` writes them"
        raise ArtefactError(asked, found="no RunResults of Polygraphy", fix=fix)
    return _run_results(body, asked)


def dump_inputs(sets: Sequence[Mapping[str, np.ndarray]]) -> str:
    """The text that `polygraphy run --load-inputs` reads."""
    return json.dumps([_encode_all(tensors) for tensors in sets], indent=1)


def dump_run_results(results: Sequence[RunnerOutputs]) -> str:
    """The text that `polygraphy run --load-outputs` and RunResults.load read."""
    body = [
        [
            entry.runner,
            [
                {
                    "outputs": {
                        name: {"values": encoded, KIND: "LazyArray"}
                        for name, encoded in _encode_all(tensors).items()
                    },
                    "runtime": seconds,
                    "runner_name": entry.runner,
                    KIND: "IterationResult",
                }
                for tensors, seconds in zip(entry.outputs, entry.seconds, strict=True)
            ],
        ]
        for entry in results
    ]
    return json.dumps({"lst": body, KIND: "RunResults"}, indent=1)


def _encode_all(tensors: Mapping[str, np.ndarray]) -> dict[str, dict[str, str]]:
    return {name: _encode(array) for name, array in tensors.items()}


def _encode(array: np.ndarray) -> dict[str, str]:
    if array.dtype in FOREIGN:
        return {"tensor": base64.b64encode(torch_from_array(array)).decode(), KIND: "Tensor"}
    return {"array": base64.b64encode(npy_from_array(array)).decode(), KIND: "ndarray"}


def _read(path: Path) -> Any:
    asked = f"tensors in {path}"
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=lambda pairs: unique(pairs, asked))
    except (ValueError, RecursionError) as error:
        raise ArtefactError(asked, found=f"it is no whole JSON file ({error})") from None


def _run_results(body: dict[str, Any], asked: str) -> tuple[RunnerOutputs, ...]:
    pairs = [_list(pair, f"a runner in {asked}") for pair in _list(body.get("lst"), asked)]
    if not pairs or not all(len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise ArtefactError(asked, found="no list of runners with their iterations")
    found = []
    for runner, iterations in unique(((name, rest) for name, rest in pairs), asked).items():
        where = f"runner {runner!r} in {asked}"
        entries = [_object(entry, "IterationResult", where) for entry in _list(iterations, where)]
        if not entries:
            raise ArtefactError(where, found="no iteration")
        times = [entry.get("runtime") for entry in entries]
        if not all(t is None or (type(t) in (int, float)) for t in times):
            raise ArtefactError(where, found="a runtime that is no number")
        outputs = tuple(
            _tensors(entry.get("outputs"), f"iteration {at} of {where}", lazy=True)
            for at, entry in enumerate(entries)
        )
        seconds = tuple(None if t is None else float(t) for t in times)
        found.append(RunnerOutputs(runner, outputs, seconds))
    return tuple(found)


def _tensors(body: Any, asked: str, *, lazy: bool = False) -> Tensors:
    if not isinstance(body, dict) or KIND in body:
        raise ArtefactError(asked, found="no object of tensors by name")
    tensors = {}
    for name, entry in body.items():
        if lazy:
            entry = _object(entry, "LazyArray", f"{name!r}, {asked}").get("values")
        tensors[name] = _array(entry, f"{name!r}, {asked}")
    return tensors


def _array(entry: Any, asked: str) -> np.ndarray:
    kind = entry.get(KIND) if isinstance(entry, dict) else type(entry).__name__
    if kind not in ("ndarray", "Tensor"):
        raise ArtefactError(
            asked, found=f"{kind}, not an array", fix="Save it with Polygraphy 0.53"
        )
    text = entry.get("array" if kind == "ndarray" else "tensor")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ArtefactError(asked, found=f"its bytes are no base64 ({error})") from None
    return array_from_npy(data, asked) if kind == "ndarray" else array_from_torch(data, asked)


def _object(entry: Any, kind: str, asked: str) -> dict[str, Any]:
    if not isinstance(entry, dict) or entry.get(KIND) != kind:
        raise ArtefactError(asked, found=f"no {kind}", fix="Save it with Polygraphy 0.53")
    return entry


def _list(entry: Any, asked: str) -> list[Any]:
    if not isinstance(entry, list):
        raise ArtefactError(asked, found="no list where one belongs")
    return entry
