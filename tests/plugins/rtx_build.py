"""Run in a child process: build every operator's body with TensorRT-RTX and print one JSON line per operator.

argv: folder with <name>.onnx files, sm number. A native abort ends only this process.
"""

import json
import re
import sys
from pathlib import Path

import tensorrt_rtx as trt


class Log(trt.ILogger):
    def __init__(self):
        super().__init__()
        self.lines = []

    def log(self, severity, message):
        self.lines.append((severity, message))


def build(path, arch):
    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse(path.read_bytes()):
        return {"error": "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))}
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{arch}"), 0)
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        if -1 in tuple(tensor.shape):
            shapes = [tuple(n if d == -1 else d for d in tensor.shape) for n in (1, 8, 64)]
            profile.set_shape(tensor.name, *shapes)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        return {"error": "; ".join(m for s, m in log.lines if s <= trt.ILogger.ERROR)}
    listing = "\n".join(m for _, m in log.lines)
    assert "Layers:" in listing
    layers = listing[listing.rindex("Layers:") :]
    types = re.findall(r"LayerType: ([\w]+)", layers)
    return {"bytes": plan.nbytes, "layers": types}


for file in sorted(Path(sys.argv[1]).glob("*.onnx")):
    print(json.dumps({"name": file.stem, **build(file, sys.argv[2])}), flush=True)
