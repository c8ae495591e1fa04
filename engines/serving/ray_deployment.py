"""A bundle as a Ray Serve application: one session a replica, the KServe v2 protocol over HTTP.

    serve.run(deployment("bundles/smollm2", precision="fp16"))

A replica answers only once its golden outputs are right. Ray Serve spreads requests over the replicas, watches their health,
and answers 503 where too many wait; joining requests is ours, since a Ray Serve batch mixes sizes and this one must not.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.bundle import Bundle
from ...core.errors import UnavailableError, UsageError
from ..session import DEFAULT_TARGET
from .endpoints import respond
from .preflight import check_served
from .ray_api import load_serve
from .served_model import ServedModel, ServeOptions

DEPLOYMENT = "blockforge"


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """Copies of the session, and what each may take.

    max_queued: requests that may wait for a free replica before clients are told 503. max_ongoing: requests inside one replica,
    those that wait to be joined included. cpus: cores that Ray sets aside for each; a GPU target gets one GPU besides.
    """

    replicas: int = 1
    max_queued: int = 256
    max_ongoing: int = 64
    cpus: float = 1.0

    def __post_init__(self) -> None:
        for what in ("replicas", "max_queued", "max_ongoing"):
            if getattr(self, what) < 1:
                raise UsageError(
                    f"{what} {getattr(self, what)}", found="too small", fix="Give 1 or more"
                )


def deployment(
    bundle: str | Path,
    *,
    precision: str | None = None,
    target: str = DEFAULT_TARGET,
    options: ServeOptions | None = None,
    replicas: ReplicaOptions | None = None,
) -> Any:
    """A Ray Serve application of `bundle`, for serve.run. options, where given, holds precision and target too.

    Every node that runs a replica must see the bundle's folder. Raises UnavailableError without Ray Serve, ArtefactError and
    UsageError for a bundle, precision, target or batch that does not exist; what a replica finds wrong, serve.run raises.
    """
    options = options or ServeOptions(precision=precision, target=target)
    replicas = replicas or ReplicaOptions()
    path = Path(bundle).resolve()
    gpu = check_served(Bundle.open(path), options).device != "cpu"
    serve = load_serve()
    made = serve.deployment(
        Replica,
        name=DEPLOYMENT,
        num_replicas=replicas.replicas,
        max_queued_requests=replicas.max_queued,
        max_ongoing_requests=replicas.max_ongoing,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": int(gpu)},
        max_constructor_retry_count=1,  # what the readiness check refuses, it refuses again
        health_check_period_s=2,
        graceful_shutdown_timeout_s=10,
    )
    return made.bind(str(path), options)


class Replica:
    """What Ray Serve makes one of for each replica; opening it is the readiness check."""

    def __init__(self, bundle: str, options: ServeOptions) -> None:
        from .ray_watch import RayWatch

        name = options.name or Bundle.open(bundle).manifest.name
        self._model = ServedModel(bundle, options, RayWatch(name))

    async def __call__(self, request: Any) -> Any:
        """Answer one HTTP request (starlette's)."""
        from starlette.responses import Response

        body, scope = await request.body(), request.scope
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # the application's route
        answer = await respond(self._model, request.method, path, request.headers, body)
        return Response(answer.body, status_code=answer.status, headers=answer.headers)

    def check_health(self) -> None:
        """Ray Serve replaces a replica that raises here."""
        if not self._model.ready:
            raise UnavailableError("health", found="the session is closed")
