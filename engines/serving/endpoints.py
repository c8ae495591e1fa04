"""The KServe v2 endpoints of one served model: an HTTP request in, an answer out, whatever the server around it is.

GET  /v2   /v2/health/live   /v2/health/ready   /v2/models/NAME[/versions/1][/ready]
POST /v2/models/NAME[/versions/1]/infer

Status 400: the request does not fit; 404: no such model or path; 503: shutting down; 500: the runtime failed. The body of an
error is {"error": text}.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from ...core.errors import BlockforgeError, UnavailableError, UsageError
from ...core.manifest import TensorRecord
from .protocol import HEADER_LENGTH, Answer, json_answer, read_request, write_answer
from .served_model import ServedModel
from .wire_types import wire_name

log = logging.getLogger(__name__)

VERSION = "1"
SERVER = {"name": "blockforge", "version": "2", "extensions": ["binary_tensor_data"]}


async def respond(
    model: ServedModel, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> Answer:
    """The answer to one HTTP request: path without percent signs, names of headers in lower case. Every failure has its status."""
    start, parts = time.monotonic(), path.strip("/").split("/")
    try:
        answer = await _route(model, method, parts, headers, body)
    except UsageError as error:
        answer = _error(400, error)
    except UnavailableError as error:
        answer = _error(503, error)
    except BlockforgeError as error:
        log.error("inference failed: %s", error)
        answer = _error(500, error)
    except Exception as error:  # a fault of this server: its log says where
        log.exception("internal error")
        answer = json_answer(500, {"error": f"internal error ({type(error).__name__})"})
    if parts[-1] == "infer":
        model.watch.request(answer.status, time.monotonic() - start)
    return answer


async def _route(
    model: ServedModel, method: str, parts: list[str], headers: Mapping[str, str], body: bytes
) -> Answer:
    match parts:
        case ["v2"]:
            return _get(method, SERVER)
        case ["v2", "health", "live"]:
            return _get(method, {"live": True})
        case ["v2", "health", "ready"]:
            return _get(method, {"ready": model.ready}, 200 if model.ready else 503)
        case ["v2", "models", model.name, "versions", version, *_] if version != VERSION:
            return _missing(f"version {version} of model {model.name}", f"The version is {VERSION}")
        case ["v2", "models", model.name, "versions", _, *rest] | [
            "v2",
            "models",
            model.name,
            *rest,
        ]:
            return await _of_model(model, method, rest, headers, body)
        case ["v2", "models", name, *_]:
            return _missing(f"model {name!r}", f"The model is {model.name!r}")
    return _missing("/" + "/".join(parts), "See the KServe v2 protocol")


async def _of_model(
    model: ServedModel, method: str, rest: list[str], headers: Mapping[str, str], body: bytes
) -> Answer:
    match rest:
        case []:
            return _get(method, _metadata(model))
        case ["ready"]:
            ready = {"name": model.name, "ready": model.ready}
            return _get(method, ready, 200 if model.ready else 503)
        case ["infer"] if method != "POST":
            return json_answer(405, {"error": "inference is POST"})
        case ["infer"]:
            return await _infer(model, headers, body)
    return _missing("/".join(rest), "A model has infer and ready")


async def _infer(model: ServedModel, headers: Mapping[str, str], body: bytes) -> Answer:
    if headers.get("content-encoding", "identity") != "identity":
        raise UsageError("inference request", found="a compressed body", fix="Send it as it is")
    request = read_request(body, headers.get(HEADER_LENGTH))
    outputs = await model.infer(request.feeds)
    return write_answer(request, model.name, VERSION, model.outputs, outputs)


def _metadata(model: ServedModel) -> dict[str, Any]:
    def tensors(records: tuple[TensorRecord, ...]) -> list[dict[str, Any]]:
        return [
            {
                "name": record.name,
                "datatype": wire_name(record),
                "shape": [n if isinstance(n, int) else -1 for n in record.dims],
            }
            for record in records
        ]

    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": model.target,
        "inputs": tensors(model.inputs),
        "outputs": tensors(model.outputs),
    }


def _get(method: str, result: Mapping[str, Any], status: int = 200) -> Answer:
    if method != "GET":
        return json_answer(405, {"error": "this is GET"})
    return json_answer(status, result)


def _missing(what: str, fix: str) -> Answer:
    return json_answer(404, {"error": f"{what}: not found. {fix}"})


def _error(status: int, error: BlockforgeError) -> Answer:
    return json_answer(status, {"error": str(error)})
