"""A compiled graph, ready to run: numpy arrays in, numpy arrays out.

    with Session(bundle, precision="fp32") as session:
        logits = session.run({"input_ids": ids})["logits"]

Feeds are checked against names, element types, sizes and the profile before the runtime sees them.
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..core.bundle import MANIFEST, Bundle
from ..core.errors import ArtefactError, UsageError
from ..core.manifest import TensorRecord, VariantRecord
from ..core.shapes import Profile, ShapeRange
from .feeds import check_feeds
from .requirements import check_runnable
from .runner import Runner
from .target import Target

if TYPE_CHECKING:
    import numpy as np

DEFAULT_TARGET = "onnxruntime:cpu"


class Session:
    """One graph on one target. Not for use from several threads at once; close it, or use it in a `with`.

    inputs, outputs: the tensors it takes and gives; profile: the sizes its inputs may have, None for any.
    """

    def __init__(
        self,
        source: Bundle | str | Path,
        *,
        precision: str | None = None,
        target: str | Target = DEFAULT_TARGET,
        verify: bool = True,
    ) -> None:
        """Open a bundle (or the path of one), or a lone .onnx file.

        precision: which of the bundle's graphs, None for the first. verify: compare the hashes of the bundle's files
        first; deserialising an engine runs native code, so leave it on for bundles from elsewhere.
        Raises UsageError for a target or precision that does not exist, ArtefactError for a bundle that does not fit or
        lacks the engine, and UnavailableError when this machine cannot run the target.
        """
        self.target = target if isinstance(target, Target) else Target.parse(target)
        check_runnable(self.target)
        self._runner: Runner | None = None
        if isinstance(source, str | Path) and Path(source).suffix == ".onnx":
            self.inputs, self.outputs, model = _read_model(Path(source))
            self.profile: Profile | None = None
            self._runner = _open(self.target, model, None)
            return
        bundle = source if isinstance(source, Bundle) else _open_bundle(Path(source))
        if verify:
            bundle.verify()
        variant = bundle.manifest.variant(precision)
        self.inputs, self.outputs = variant.inputs, variant.outputs
        self.profile = {n: ShapeRange(r.min, r.opt, r.max) for n, r in variant.profile.items()}
        plan = _plan(bundle, variant, self.target)
        self._runner = _open(self.target, bundle.file(variant.model), plan)

    def run(self, feeds: Mapping[str, "np.ndarray"]) -> "dict[str, np.ndarray]":
        """Compute every output for `feeds` (name -> array).

        Raises UsageError for a closed session and for feeds that do not fit: name, element type, size, profile.
        """
        if self._runner is None:
            raise UsageError(
                f"run on {self.target}", found="the session is closed", fix="Open a new one"
            )
        return self._runner.run(check_feeds(feeds, self.inputs, self.profile))

    def close(self) -> None:
        """Free what the runtime holds; closing twice is allowed."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _open(target: Target, model: Path, plan: Path | None) -> Runner:
    if target.is_tensorrt:
        from .tensorrt_session import TensorRTRunner

        if plan is None:
            raise UsageError(
                f"session on {target}",
                found="an ONNX file, not an engine",
                fix="Compile it and open the bundle",
            )
        return TensorRTRunner(plan, target.runtime)
    from .onnxruntime_session import OnnxRuntimeRunner

    return OnnxRuntimeRunner(model, target.device)


def _open_bundle(path: Path) -> Bundle:
    if path.is_file() and path.name != MANIFEST:
        raise UsageError(
            f"session of {path}",
            found="a file that is neither a bundle nor an .onnx file",
            fix="Name the folder that `blockforge build` wrote",
        )
    return Bundle.open(path.parent if path.name == MANIFEST else path)


def _plan(bundle: Bundle, variant: VariantRecord, target: Target) -> Path | None:
    """The engine file for `target`; None where the ONNX file itself runs."""
    if not target.is_tensorrt:
        return None
    for engine in variant.engines:
        if engine.target == str(target) and engine.path:
            return bundle.file(engine.path)
    has = ", ".join(engine.target for engine in variant.engines) or "none"
    raise ArtefactError(
        f"engine {target} ({variant.precision}) of {bundle.path}",
        found=f"the bundle has {has}",
        fix=f"blockforge compile {bundle.path} --target {target}",
    )


def _read_model(path: Path) -> tuple[tuple[TensorRecord, ...], tuple[TensorRecord, ...], Path]:
    from ..graph.io import load_model
    from .signature import signature_of

    return *signature_of(load_model(path)), path
