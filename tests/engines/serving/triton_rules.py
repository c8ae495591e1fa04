"""What Triton asks of a model's folder, from its documentation and its real protobuf schema; shares nothing with our writer."""

import math

import pytest
from google.protobuf import text_format

SCHEMA = pytest.importorskip(
    "tritonclient.grpc", reason="the real schema comes with blockforge[triton] and grpcio"
).model_config_pb2
BYTES = {"FP64": 8, "INT64": 8, "FP32": 4, "INT32": 4, "FP16": 2, "BF16": 2, "INT8": 1, "UINT8": 1, "BOOL": 1}  # fmt: skip
TAKES = {  # Model Configuration, Datatypes
    "onnxruntime": {"BOOL", "UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "FP64"},
    "tensorrt": {"BOOL", "UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "BF16"},
}
PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan"}


def read_config(folder):
    """config.pbtxt through the real schema, which refuses unknown fields and enum members."""
    return text_format.Parse((folder / "config.pbtxt").read_text(), SCHEMA.ModelConfig())


def dtype_name(number):
    return SCHEMA.DataType.Name(number).removeprefix("TYPE_")


def faults(folder, config):
    """Every rule that the folder breaks, as a word each."""
    found = []

    def rule(name, holds):
        if not holds:
            found.append(name)

    rule("name", config.name == folder.name)
    rule("platform", PLATFORMS.get(config.backend) == config.platform)
    rule("max_batch_size", config.max_batch_size >= 0)
    for side, tensors in (("input", config.input), ("output", config.output)):
        rule(f"{side} missing", len(tensors) > 0)
        for io in tensors:
            rule(f"{side} name", io.name)
            rule(f"{side} dims", io.dims and all(d == -1 or d >= 1 for d in io.dims))
            rule(f"{side} data_type", dtype_name(io.data_type) in TAKES[config.backend])
            if io.HasField("reshape"):
                empty = not io.reshape.shape
                rule(f"{side} reshape", not (empty and config.max_batch_size == 0))
                same = math.prod(io.dims) == math.prod(io.reshape.shape)
                rule(f"{side} reshape size", same)
    for size in config.dynamic_batching.preferred_batch_size:
        rule("preferred_batch_size", 0 < size <= config.max_batch_size)
    rule(
        "batching without batches", not config.HasField("dynamic_batching") or config.max_batch_size
    )
    rule("instance_group", len(config.instance_group) > 0)
    for group in config.instance_group:
        rule("count", group.count >= 1)
        gpu = group.kind == SCHEMA.ModelInstanceGroup.KIND_GPU
        rule("kind", gpu or group.kind == SCHEMA.ModelInstanceGroup.KIND_CPU)
        rule("tensorrt on a CPU", gpu or config.backend != "tensorrt")
        rule("profile", not group.profile or config.platform == "tensorrt_plan")
        rule("profile index", all(p.isdecimal() for p in group.profile))
    rule("version_policy", config.HasField("version_policy"))
    versions = [p for p in folder.iterdir() if p.name.isdecimal()]
    rule("no version", versions)
    for version in versions:
        rule("model file", (version / config.default_model_filename).is_file())
    inputs = {io.name: io for io in config.input}
    for sample in config.model_warmup:
        rule("warm-up batch", 1 <= sample.batch_size <= max(1, config.max_batch_size))
        rule("warm-up inputs", set(sample.inputs) == set(inputs))
        for name, field in sample.inputs.items():
            rule("warm-up type", field.data_type == inputs[name].data_type)
            pairs = zip(field.dims, inputs[name].dims, strict=False)
            fits = len(field.dims) == len(inputs[name].dims)
            rule("warm-up dims", fits and all(d >= 1 and w in (-1, d) for d, w in pairs))
            file = folder / "warmup" / field.input_data_file
            size = math.prod(field.dims) * BYTES[dtype_name(field.data_type)]
            rule("warm-up file", file.is_file() and file.stat().st_size == size)
    return found
