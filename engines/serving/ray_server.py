"""Serve a bundle until the caller has had enough: cluster, HTTP proxy, replicas; all of it ends with the block.

with serving("bundles/smollm2", port=8000) as url: ...
"""

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import errors
from ...core.bundle import Bundle
from ...core.errors import BlockforgeError, BuildError, UnavailableError, UsageError
from .preflight import check_machine, check_served
from .ray_api import LOCAL, cluster, connected, load_serve
from .ray_deployment import ReplicaOptions, deployment
from .served_model import ServeOptions

APPLICATION = "blockforge"
UNPLACED = "to be scheduled"  # Ray Serve says it of a replica that has waited for 30 s
NEEDS = re.compile(r"required for each replica: (\{.*?\}), total resources available: (\{.*?\})")
POLL_SECONDS = 0.2
OURS = re.compile(r"blockforge\.core\.errors\.(\w+): (.*)")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and the Ray cluster that it runs on.

    scheduling_seconds: how long replicas may wait for cores and GPUs that the cluster does not have free.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    ray: str = LOCAL
    cpus: int | None = None
    scheduling_seconds: float = 120.0

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise UsageError(f"port {self.port}", found="out of range", fix="Give 1 to 65535")


@contextlib.contextmanager
def serving(
    bundle: str | Path,
    options: ServeOptions | None = None,
    replicas: ReplicaOptions | None = None,
    address: Address | None = None,
) -> Iterator[str]:
    """Serve `bundle` and yield the model's URL once a replica is ready.

    Raises what `deployment`, `cluster` and, where the cluster is started here, `check_machine` raise; what a replica found
    wrong (as its own class); UnavailableError where the cluster lacks free cores or GPUs; and BuildError for whatever else
    kept Ray Serve from starting.
    """
    options, address = options or ServeOptions(), address or Address()
    target = check_served(Bundle.open(bundle), options)
    if address.ray == LOCAL and not connected():
        check_machine(target, address.host, address.port)
    application = deployment(bundle, options=options, replicas=replicas)
    name = options.name or Bundle.open(bundle).manifest.name
    serve = load_serve()
    with cluster(address.ray, cpus=address.cpus):
        try:
            deploy(application, address, f"serve {bundle}")
            yield f"http://{address.host}:{address.port}/v2/models/{name}"
        finally:  # lets requests end; serve.shutdown would take down what others run on the cluster
            with contextlib.suppress(Exception):  # a cluster that died has nothing to delete
                serve.delete(APPLICATION)


def deploy(
    application: Any, address: Address, asked: str, *, name: str = APPLICATION, route: str = "/"
) -> None:
    """Start the application on the cluster that is connected; returns once a replica is ready. Raises as `serving`."""
    serve = load_serve()
    try:
        serve.start(http_options={"host": address.host, "port": address.port})
        serve.run_many(
            [serve.RunTarget(target=application, name=name, route_prefix=route)],
            wait_for_applications_running=False,
        )
        _wait(serve, name, asked, address.scheduling_seconds)
    except BlockforgeError:
        raise
    except Exception as error:  # Ray raises RuntimeError with the replica's traceback in its text
        raise _reported(serve, asked, name, error) from None


def _wait(serve: Any, name: str, asked: str, seconds: float) -> None:
    """Return once the application runs; UnavailableError where its replicas find no place in `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = serve.status().applications[name]
        if found.status == "RUNNING":
            return
        if found.status == "DEPLOY_FAILED":
            raise RuntimeError(found.message)
        words = " ".join(d.message for d in found.deployments.values())
        if time.monotonic() > end and UNPLACED in words:
            resources = NEEDS.search(words)
            raise UnavailableError(
                asked,
                found=f"no room in the Ray cluster for {seconds:g} s"
                + (
                    f" (each replica needs {resources[1]}; free: {resources[2]})"
                    if resources
                    else ""
                ),
                fix="Give fewer --replicas, or add nodes with what one needs",
            )
        time.sleep(POLL_SECONDS)


def _reported(serve: Any, asked: str, name: str, error: Exception) -> BlockforgeError:
    """The replica's own error where there is one in what Ray Serve says."""
    text = str(error)
    with contextlib.suppress(Exception):
        found = serve.status().applications[name]
        text += "\n".join(("", found.message, *(d.message for d in found.deployments.values())))
    ours = OURS.findall(text)
    if ours:
        kind, words = ours[-1]
        return getattr(errors, kind, BuildError)(asked, found=words)
    return BuildError(asked, found=" ".join(text.split())[-600:])
