"""New weights for an engine that was built for it: every name, type and size is checked before anything changes."""

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.errors import BuildError, UsageError
from ...core.manifest import TensorRecord
from ...core.shapes import Shape
from ..tensorrt_session import DTYPES
from ..views import Place, View, view_of
from .engine import Engine

SHOWN = 5  # names that an error lists


def refit_engine(engine: Engine, weights: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
    """Exchange weights while nothing runs. weights: name -> host array, or tensor with DLPack, as the engine has it.

    shapes: what is known of the weights' shapes; TensorRT itself knows only how many elements there are.
    Raises UsageError for an engine without refit, and for unknown names, other types or shapes and weights that would be
    missing: then nothing has changed. BuildError when TensorRT fails: then some may have.
    """
    asked = f"refit of {engine.asked}"
    if not engine.handle.refittable:
        raise UsageError(
            asked, found="it was built without refit", fix="Build with the option refit"
        )
    trt = engine.api.trt
    refitter = trt.Refitter(engine.handle, engine.loaded.logger)
    names = list(refitter.get_all_weights())
    _check_names(asked, weights, names)
    views = {
        name: _checked(value, refitter.get_weights_prototype(name), name, asked, shapes.get(name))
        for name, value in weights.items()
    }
    engine.loaded.words.clear()
    for name, view in views.items():
        kind = getattr(trt.DataType, str(view.dtype.tensorrt))
        count = view.nbytes // view.dtype.itemsize
        if not refitter.set_named_weights(name, trt.Weights(kind, view.address, count)):
            raise UsageError(
                f"weight {name!r} of {engine.asked}",
                found=f"{engine.api.version} refuses it: {engine.said()}",
            )
    missing = list(refitter.get_missing_weights())
    if missing:
        raise UsageError(
            asked,
            found=f"without {_some(missing)}, which TensorRT has merged with some of those given",
            fix="Give these too",
        )
    if not refitter.refit_cuda_engine():
        raise BuildError(
            asked,
            found=f"{engine.api.version} failed, perhaps with some weights exchanged: {engine.said()}",
            fix="Refit again with every weight, or open a new session",
        )
    engine.stripped = False


def _check_names(asked: str, weights: Mapping[str, Any], names: list[str]) -> None:
    unknown = [name for name in weights if name not in set(names)]
    if not weights:
        raise UsageError(asked, found="no weights", fix=f"It has {_some(names)}")
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=SHOWN)
        raise UsageError(
            asked,
            found=f"unknown weight {_some(unknown)}",
            fix=f"Near it: {', '.join(near)}" if near else f"It has {_some(names)}",
        )


def _checked(value: Any, prototype: Any, name: str, asked: str, shape: Shape | None) -> View:
    kind = prototype.dtype.name
    if kind not in DTYPES:
        raise UsageError(asked, found=f"{name!r} has elements of type {kind}, which no array has")
    record = TensorRecord(name=name, dtype=DTYPES[kind].value, dims=())
    view = view_of(value, record, Place("refit"))
    count = int(np.prod(view.shape, dtype=np.int64))
    if shape is not None and view.shape != shape:
        raise UsageError(
            f"weight {name!r}", found=f"shape {view.shape}", fix=f"The graph has {shape}"
        )
    if count != prototype.size:
        raise UsageError(
            f"weight {name!r}",
            found=f"{count} elements",
            fix=f"The engine has {prototype.size} of them",
        )
    return view


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more
