"""A compiled graph, ready to run: arrays or GPU memory in, arrays or GPU memory out.

    with Session(bundle, precision="fp32") as session:
        logits = session.run({"input_ids": ids})["logits"]

Feeds are checked against names, element types, sizes and the profiles before the runtime sees them.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..core.bundle import Bundle
from ..core.errors import UnavailableError, UsageError
from ..core.manifest import TensorRecord
from ..core.shapes import Profile
from .feeds import check_names, check_numbers, check_output_names, check_outputs, check_sizes
from .runner import Call, LayerTimes, Runner, Slot, Tensor
from .session_opening import open_runner
from .session_pool import Pool
from .session_profiles import pick_profile
from .session_source import open_source
from .target import Target
from .views import Pointer as Pointer
from .views import View, view_of

DEFAULT_TARGET = "onnxruntime:cpu"


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session runs.

    contexts: how many runs may go on at once; each thread has an execution context for its run, made when it is first
    needed. wait_seconds: how long a run waits for one, and close for runs in progress. cuda_graphs: how many captured
    CUDA graphs each context keeps, the most recently used; 0 captures none. device: the GPU's number, None for the first of
    the engine's architecture.
    """

    contexts: int = 4
    wait_seconds: float = 60.0
    cuda_graphs: int = 0
    device: int | None = None

    def __post_init__(self) -> None:
        for name, low in (("contexts", 1), ("wait_seconds", 0), ("cuda_graphs", 0)):
            value = getattr(self, name)
            if value < low:
                raise UsageError(
                    f"session option {name}", found=f"{value}", fix=f"Give {low} or more"
                )


class Session:
    """One graph on one target, for any number of threads. Close it, or use it in a `with`.

    inputs, outputs: the tensors it takes and gives. profiles: the sizes its inputs may have, () for any; of those that
    fit, a run takes the one with the fewest elements at max.
    """

    def __init__(
        self,
        source: Bundle | str | Path,
        *,
        precision: str | None = None,
        target: str | Target | None = None,
        verify: bool | str = True,
        trusted: str | Path | Sequence[str | Path] = (),
        options: SessionOptions | None = None,
    ) -> None:
        """Open a bundle (or the path of one), a lone .onnx file, or a lone .plan with its .layers.json beside it.

        precision: which of the bundle's graphs, None for the first. target: onnxruntime:cpu for None, and for a plan what its
        .layers.json says; an engine for several architectures serves each of them. verify: compare the hashes of the bundle's files first; loading an engine runs native code from it,
        so leave it on for bundles from elsewhere. For a file on its own, its SHA-256 as text. trusted: public keys (PEM),
        one of which must have signed the bundle (`blockforge sign`).
        In this order the hash, TensorRT's version and the GPU's architecture are checked before anything is loaded.
        Raises UsageError for a target, precision or option that does not exist, ArtefactError for what does not fit or
        lacks the engine, and UnavailableError when this machine cannot run the target.
        """
        self._options = options or SessionOptions()
        asked = Target.parse(target) if isinstance(target, str) else target
        keys = tuple(map(Path, [trusted] if isinstance(trusted, str | Path) else trusted))
        found = open_source(source, precision=precision, target=asked, verify=verify, trusted=keys)
        self.target = found.target
        self._runner: Runner
        self._runner, self.inputs, self.outputs = open_runner(
            found, graphs=self._options.cuda_graphs, device=self._options.device
        )
        self.profiles: tuple[Profile, ...] = self._runner.profiles
        self._closing, self._closed = threading.Lock(), False
        self._pool: Pool[Slot] = Pool(
            self._runner.open_slot,
            self._options.contexts,
            self._options.wait_seconds,
            f"run on {self.target}",
        )
        self._forgotten = weakref.finalize(self, _free, self._pool, self._runner)

    def run(
        self,
        feeds: Mapping[str, Any],
        *,
        outputs: Mapping[str, Any] | None = None,
        stream: Any = None,
        on_layer: LayerTimes | None = None,
    ) -> dict[str, Any]:
        """Compute every output for `feeds` (name -> memory), and wait for it.

        feeds: numpy arrays, tensors with DLPack or `__cuda_array_interface__`, or Pointers. GPU memory is read where it
        is, host memory is copied to the GPU. outputs: memory to write results to, for any of the names; the result then
        holds what was given, and a new numpy array for the others. stream: a CUDA stream (a handle, or cuda-python's,
        torch's or CuPy's object), None for one of the session's own. on_layer: is told (layer or node, seconds) of this
        run; ONNX Runtime opens the model once more for it.
        Raises UsageError for a closed session and for feeds or outputs that do not fit (name, element type, size,
        profile, device, numbers beyond a known range), UnavailableError when no context gets free in time, and BuildError with the runtime's words
        when it fails.
        """
        with self._called(feeds, outputs, stream, on_layer) as (slot, call):
            return slot.run(call)

    def enqueue(
        self,
        feeds: Mapping[str, Any],
        *,
        outputs: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> Mapping[str, Tensor]:
        """Queue a run on a stream, and return at once: results stay on the GPU until they are asked for.

        As run, but the results are tensors: `numpy()` waits and copies, and DLPack or `__cuda_array_interface__` hand
        them on in the stream's order. Host memory that was fed must not change before. On ONNX Runtime they are computed
        already.
        """
        with self._called(feeds, outputs, stream, None) as (slot, call):
            return slot.enqueue(call)

    def refit(self, weights: Mapping[str, Any]) -> None:
        """Exchange weights (name -> host memory) of an engine that was built with refit, once no run is in progress.

        Raises UsageError for unknown or missing names and other types or shapes, when nothing has changed, for targets
        that cannot, and for a closed session; BuildError when TensorRT fails.
        """
        with self._pool.all(f"refit on {self.target}") as slots:
            for slot in slots:
                slot.settle()
            self._runner.refit(weights)

    @property
    def profile(self) -> Profile | None:
        """The first profile, None where inputs may have any size."""
        return self.profiles[0] if self.profiles else None

    @property
    def counts(self) -> dict[str, int]:
        """Contexts in use or kept, and CUDA graphs captured, replayed and evicted so far."""
        return {"contexts": self._pool.slots, **self._runner.counts()}

    def close(self) -> None:
        """Refuse new runs, wait for those in progress, and free everything once; closing twice is allowed.

        Results that were handed on by DLPack or `__cuda_array_interface__` keep their memory until they are let go; other
        results of enqueue cannot be read any more.
        Raises UnavailableError when a run takes longer than wait_seconds (call it again), UsageError from inside a run.
        """
        asked = f"close on {self.target}"
        slots = self._pool.close(asked)
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._forgotten.detach()
            with contextlib.ExitStack() as stack:  # the rest is freed too where one fails
                stack.callback(self._runner.close)
                for slot in slots:
                    stack.callback(slot.close)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _called(
        self,
        feeds: Mapping[str, Any],
        outputs: Mapping[str, Any] | None,
        stream: Any,
        on_layer: LayerTimes | None,
    ) -> Iterator[tuple[Slot, Call]]:
        """A slot, and the call as it runs it; everything about the call that can be wrong is found out here."""
        outputs = {} if outputs is None else outputs
        for what, given in (("feeds", feeds), ("outputs", outputs)):
            if not isinstance(given, Mapping):
                raise UsageError(
                    f"run with {what}",
                    found=f"a {type(given).__name__}",
                    fix="Give a mapping of names to arrays: {"
                    + ", ".join(
                        repr(r.name) for r in (self.inputs if what == "feeds" else self.outputs)
                    )
                    + "}",
                )
        with self._pool.take() as slot:
            check_names(feeds, self.inputs)
            check_output_names(outputs, self.outputs)
            handle = self._handle(stream)
            on = slot.stream if handle is None else handle
            inputs = self._views(feeds, self.inputs, on)
            sizes = check_sizes(self.inputs, shapes := {n: v.shape for n, v in inputs.items()})
            profile = pick_profile(shapes, self.profiles, self.inputs)
            check_numbers(inputs, self.inputs)
            written = self._views(outputs, self.outputs, on, output=True)
            check_outputs(written, self.outputs, sizes)
            yield slot, Call(inputs, written, outputs, profile, handle, on_layer)

    def _views(
        self,
        memory: Mapping[str, Any],
        records: tuple[TensorRecord, ...],
        stream: int | None,
        *,
        output: bool = False,
    ) -> dict[str, View]:
        place = self._runner.place
        return {
            r.name: view_of(memory[r.name], r, place, stream=stream, output=output)
            for r in records
            if r.name in memory
        }

    def _handle(self, stream: Any) -> int | None:
        if stream is None:
            return None
        if self._runner.place.ordinal is None:
            raise UsageError(
                f"run on {self.target} with a stream",
                found="this target has no CUDA streams",
                fix="Leave the stream out",
            )
        from .cuda.streams import stream_handle

        return stream_handle(stream)


def _free(pool: Pool[Slot], runner: Runner) -> None:
    """Free what a session held that nobody closed: nobody can be running it any more."""
    with contextlib.suppress(UnavailableError):  # but a daemon thread at the interpreter's end
        for slot in pool.close("close", wait_seconds=0):
            slot.close()
        runner.close()
