"""TensorRT-RTX's real parser and builder, many small graphs a second: a server process that forks one child a graph.

    Builder().build(model bytes, "SM89") -> Outcome(built, stage, words, warnings, listing)

The server imports TensorRT once and never makes a builder itself, so that a child starts at once and may crash alone.
Run as a script it is the server: one JSON request a line on stdin, one JSON outcome a line on stdout.
"""

import base64
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass

BUILD_SECONDS = 300  # a build that takes longer ends the server


@dataclass(frozen=True)
class Outcome:
    """stage: "parse" or "build" where it ended, "died" for a crash. words: TensorRT's errors; outputs: name -> type."""

    built: bool
    stage: str
    words: str
    warnings: tuple[str, ...]
    listing: str
    outputs: dict[str, str]


class Builder:
    """A client of one server."""

    def __init__(self):
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.known = {}

    def build(self, model, arch="SM89", sizes=(1, 2, 4)):
        """Build serialised `model`; dynamic axes get the sizes min, opt, max. The same graph is built once."""
        key = (model, arch, sizes)
        if key not in self.known:
            request = {"model": base64.b64encode(model).decode(), "arch": arch, "sizes": sizes}
            self.server.stdin.write(json.dumps(request) + "\n")
            self.server.stdin.flush()
            patience = threading.Timer(BUILD_SECONDS, self.server.kill)
            patience.start()
            answer = json.loads(self.server.stdout.readline())
            patience.cancel()
            self.known[key] = Outcome(**answer | {"warnings": tuple(answer["warnings"])})
        return self.known[key]

    def close(self):
        self.server.stdin.close()
        self.server.wait(timeout=30)


def serve():
    import tensorrt_rtx as trt

    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    for line in sys.stdin:
        request = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            with os.fdopen(write, "w") as pipe:
                json.dump(outcome(trt, base64.b64decode(request["model"]), request), pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answer = pipe.read()
        status = os.waitpid(child, 0)[1]
        if status:
            answer = json.dumps(result("died", f"status {status}"))
        out.write(answer + "\n")
        out.flush()


def result(stage, words, warnings=(), listing="", outputs=None, built=False):
    return {
        "built": built,
        "stage": stage,
        "words": words,
        "warnings": list(warnings),
        "listing": listing,
        "outputs": outputs or {},
    }


def outcome(trt, model, request):
    errors, warnings, listings = [], [], []

    class Ear(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)

        def log(self, severity, text):
            if severity <= trt.ILogger.Severity.ERROR:
                errors.append(text)
            elif severity == trt.ILogger.Severity.WARNING:
                warnings.append(text)
            elif text.startswith("Layers:"):
                listings.append(text)

    ear = Ear()
    builder = trt.Builder(ear)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, ear)
    if not parser.parse(model):
        told = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        return result("parse", " | ".join(told or errors), warnings)
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.__members__[request["arch"]], 0)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)
    profile = builder.create_optimization_profile()
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    dynamic = [t for t in inputs if any(d < 0 for d in t.shape)]
    for tensor in dynamic:
        profile.set_shape(
            tensor.name, *([n if d < 0 else d for d in tensor.shape] for n in request["sizes"])
        )
    if dynamic:
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    types = {t.name: str(t.dtype).removeprefix("DataType.") for t in outputs}
    return result("build", " | ".join(errors), warnings, "".join(listings), types, plan is not None)


if __name__ == "__main__":
    serve()
