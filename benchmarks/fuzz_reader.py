"""Feed damaged ONNX files to the reader and preflight; each must give a report or a clear error, in bounded time.

    python benchmarks/fuzz_reader.py [--inputs 10000] [--seed 0] [FILE.onnx ...]

Each input is a seed file with bytes flipped, runs deleted, doubled or exchanged, or numbers replaced by huge ones. Prints one
line of JSON: inputs, reports, errors by class, the slowest input, the largest resident memory; exit 1 for any other exception.
"""

import argparse
import collections
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from onnx import TensorProto, helper, numpy_helper, shape_inference

from blockforge.core.errors import BlockforgeError
from blockforge.engines.memory import peak_bytes
from blockforge.engines.preflight import preflight
from blockforge.engines.target import Target

TARGET = Target.parse("tensorrt-rtx:sm89")
HUGE = (
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\x0f",
    b"\x00",
    b"\x80\x80\x80\x80\x10",
)


def seeds() -> list[bytes]:
    """Small models: weights, attention, a branch and quantised products; functions, a loop and shapes that are not declared."""
    import numpy as np

    node, info = helper.make_node, helper.make_tensor_value_info
    shape = ["b", 2, "s", 16]
    branch = [
        helper.make_graph(
            [node("Identity", ["a"], [out])], out, [], [info(out, TensorProto.FLOAT16, shape)]
        )
        for out in ("then", "else")
    ]
    nodes = [
        node("QuantizeLinear", ["x", "scale"], ["q"], output_dtype=TensorProto.FLOAT8E4M3FN),
        node("DequantizeLinear", ["q", "scale"], ["d"]),
        node("Attention", ["d", "d", "d"], ["a"], name="layers.0/Attention", is_causal=1),
        node("If", ["c"], ["i"], then_branch=branch[0], else_branch=branch[1]),
        node("RMSNormalization", ["i", "w"], ["n"], axis=-1),
        node("MatMul", ["n", "m"], ["y"], name="layers.0/MatMul"),
    ]
    weights = {
        "scale": np.float16(0.1),
        "w": np.ones(16, np.float16),
        "m": np.eye(16, dtype=np.float16),
    }
    graph = helper.make_graph(
        nodes,
        "seed",
        [info("x", TensorProto.FLOAT16, shape), info("c", TensorProto.BOOL, [])],
        [info("y", TensorProto.FLOAT16, shape)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return [shape_inference.infer_shapes(model).SerializeToString(), _undeclared()]


def _undeclared() -> bytes:
    """Nothing inside declares a shape; function calls in function calls, computed sizes, a loop without a condition."""
    node, info = helper.make_node, helper.make_tensor_value_info
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "Inner", ["a"], ["b"], [node("Relu", ["a"], ["b"])], opsets)
    calls = [node("Inner", ["a"], ["t"], domain="own"), node("Inner", ["t"], ["b"], domain="own")]
    outer = helper.make_function("own", "Outer", ["a"], ["b"], calls, opsets)
    flag, number = info("go", TensorProto.BOOL, []), info("i", TensorProto.INT64, [])
    state = [info(name, TensorProto.FLOAT, None) for name in ("s", "so")]
    steps = [node("Identity", ["go"], ["on"]), node("Neg", ["s"], ["so"])]
    body = helper.make_graph(
        steps, "body", [number, flag, state[0]], [info("on", TensorProto.BOOL, []), state[1]]
    )
    nodes = [
        node("Outer", ["x"], ["o"], domain="own"),
        node("Shape", ["o"], ["s0"]),
        node("Concat", ["s0", "one"], ["s1"], axis=0),
        node("Reshape", ["o", "s1"], ["r"]),
        node("Loop", ["n", "", "r"], ["l"], body=body),
        node("RotaryEmbedding", ["x", "cos", "cos"], ["e"]),
        node("Add", ["e", "o"], ["y"]),
    ]
    ins = [
        info("x", TensorProto.FLOAT, ["b", 2, "s", 16]),
        info("cos", TensorProto.FLOAT, [1, "s", 8]),
    ]
    weights = [
        helper.make_tensor(name, TensorProto.INT64, dims, [1])
        for name, dims in (("one", [1]), ("n", []))
    ]
    graph = helper.make_graph(nodes, "seed", ins, [info("y", TensorProto.FLOAT, None)], weights)
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=11, functions=[inner, outer]
    ).SerializeToString()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """`data` with one to eight injuries."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at, length = rng.randrange(len(out)), rng.randint(1, 24)
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = out[at : at + length]
        elif kind == 4:
            out[at : at + 1] = rng.choice(HUGE)
        else:
            other = rng.randrange(len(out))
            out[at : at + length] = out[other : other + length]
        if not out:
            return b""
    return bytes(out)


def look(data: bytes, folder: Path) -> str:
    """What became of one input: "report", or the name of the error. Anything but a BlockforgeError passes through."""
    path = folder / "input.onnx"
    path.write_bytes(data)
    try:
        preflight(path, TARGET)
    except BlockforgeError as error:
        return type(error).__name__
    return "report"


def main() -> int:
    """Run the inputs; 1 when one of them ended in an exception that is none of ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    base = [path.read_bytes() for path in options.files] or seeds()
    outcomes: collections.Counter[str] = collections.Counter()
    faults: dict[str, str] = {}
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.inputs):
            data, start = mutated(rng.choice(base), rng), time.process_time()
            try:
                outcomes[look(data, Path(folder))] += 1
            except Exception as error:  # the find that this script is for
                kind = f"{type(error).__name__}: {str(error)[:120]}"
                outcomes["fault"] += 1
                faults.setdefault(kind, data.hex())
            slowest = max(slowest, time.process_time() - start)
    result = {"inputs": options.inputs, "outcomes": outcomes, "slowest_cpu_seconds": slowest}
    print(json.dumps(result | {"peak_bytes": peak_bytes(), "faults": list(faults)}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
