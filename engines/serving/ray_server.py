"""Serve a bundle until the caller has had enough: cluster, HTTP proxy, replicas; all of it ends with the block.

with serving("bundles/smollm2", port=8000) as url: ...
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import errors
from ...core.bundle import Bundle
from ...core.errors import BlockforgeError, BuildError
from .ray_api import LOCAL, cluster, load_serve
from .ray_deployment import ReplicaOptions, deployment
from .served_model import ServeOptions

APPLICATION = "blockforge"
OURS = re.compile(r"blockforge\.core\.errors\.(\w+): (.*)")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and the Ray cluster that it runs on."""

    host: str = "127.0.0.1"
    port: int = 8000
    ray: str = LOCAL
    cpus: int | None = None


@contextlib.contextmanager
def serving(
    bundle: str | Path,
    options: ServeOptions | None = None,
    replicas: ReplicaOptions | None = None,
    address: Address | None = None,
) -> Iterator[str]:
    """Serve `bundle` and yield the model's URL once a replica is ready.

    Raises what `deployment` and `cluster` raise, what a replica found wrong (as its own class), and BuildError for whatever
    else kept Ray Serve from starting.
    """
    options, address = options or ServeOptions(), address or Address()
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
        serve.run(application, name=name, route_prefix=route)
    except Exception as error:  # Ray raises RuntimeError with the replica's traceback in its text
        raise _reported(serve, asked, name, error) from None


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
