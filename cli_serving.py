"""The commands that put a bundle behind a server: a Triton model repository, and a Ray Serve application."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import console
from .cli_tools import BundleArgument, JsonOption

if TYPE_CHECKING:
    from .engines.serving.triton_repository import PackedModel

PrecisionOption = Annotated[str | None, typer.Option(help="Which graph (the first).")]
NameOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of the model (the bundle's).")
]
MaxBatchOption = Annotated[
    int | None, typer.Option(metavar="ROWS", help="Rows that one run may join (the profiles').")
]


def pack(
    bundle: BundleArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="REPO", help="The model repository.")
    ],
    format_: Annotated[
        Literal["triton"], typer.Option("--format", help="Whose repository to write.")
    ] = "triton",
    precision: PrecisionOption = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "-t", "--target", metavar="T", help="Repeatable; one model each (onnxruntime:cpu)."
        ),
    ] = None,
    name: NameOption = None,
    version: Annotated[int, typer.Option(metavar="N", help="Of the model; others are kept.")] = 1,
    max_batch: MaxBatchOption = None,
    instances: Annotated[
        int, typer.Option(metavar="N", help="Copies of the model on each device.")
    ] = 1,
    delay: Annotated[
        int, typer.Option(metavar="MICROSECONDS", help="How long a request may wait for others.")
    ] = 100,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a version that is there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a Triton Inference Server model repository: configuration, model, warm-up from the golden inputs."""
    from dataclasses import asdict

    from .core.bundle import Bundle
    from .engines.serving.triton_repository import PackOptions, pack_triton
    from .engines.session import DEFAULT_TARGET
    from .engines.target import Target

    options = PackOptions(
        name=name,
        version=version,
        max_batch=max_batch,
        instances=instances,
        delay=delay,
        force=force,
    )
    targets = [Target.parse(text) for text in target or [DEFAULT_TARGET]]
    packed = pack_triton(
        Bundle.open(bundle), output, precision=precision, targets=targets, options=options
    )
    rows = [asdict(model) | {"path": str(model.path)} for model in packed]
    console.emit({"format": format_, "models": rows}, lambda: _packed(packed, output), as_json)


def _packed(models: "tuple[PackedModel, ...]", repository: Path) -> Any:
    from rich.console import Group
    from rich.markup import escape

    made = console.table(
        f"models in {repository}",
        "model",
        ">version",
        "target",
        "backend",
        ">max batch",
        ">warm-ups",
    )
    for model in models:
        made.add_row(
            model.name,
            str(model.version),
            model.target,
            model.backend,
            str(model.max_batch or "-"),
            str(model.warm_ups),
        )
    notes = [f"{model.name}: {escape(note)}" for model in models for note in model.notes]
    return Group(made, *notes, f"tritonserver --model-repository={repository}")


def serve(
    bundle: BundleArgument,
    precision: PrecisionOption = None,
    target: Annotated[
        str, typer.Option("-t", "--target", metavar="T", help="Where to run.")
    ] = "onnxruntime:cpu",
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where to listen.")] = 8000,
    replicas: Annotated[int, typer.Option(metavar="N", help="Sessions.")] = 1,
    name: NameOption = None,
    max_batch: MaxBatchOption = None,
    wait_ms: Annotated[
        float, typer.Option(metavar="MS", help="How long a request waits for others.")
    ] = 2.0,
    max_queued: Annotated[
        int, typer.Option(metavar="N", help="Waiting requests beyond which clients get 503.")
    ] = 256,
    ray: Annotated[
        str, typer.Option(metavar="ADDRESS", help="A Ray cluster; local: one started here.")
    ] = "local",
    as_json: JsonOption = False,
) -> None:
    r"""Serve a bundle over HTTP (KServe v2 protocol) with Ray Serve, until Ctrl-C; needs blockforge\[serve]."""
    import threading

    from .engines.serving.ray_deployment import ReplicaOptions
    from .engines.serving.ray_server import Address, serving
    from .engines.serving.served_model import ServeOptions

    options = ServeOptions(precision, target, name, max_batch, wait_ms)
    copies = ReplicaOptions(replicas=replicas, max_queued=max_queued)
    try:
        with serving(bundle, options, copies, Address(host, port, ray)) as url:
            console.emit({"url": url}, lambda: f"ready: {url}", as_json)
            sys.stdout.flush()
            threading.Event().wait()
    except KeyboardInterrupt:  # how a server is stopped
        console.interrupted = False


COMMANDS = (pack, serve)
