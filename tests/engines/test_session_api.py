"""Every name of TensorRT that sessions use, against the real Python API of both products: it exists, with its arguments."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda import FakeCuda
from fake_tensorrt import Context, Engine, FakeTensorRT, Refitter

from blockforge.engines import cuda, session_fit, tensorrt_session

sys.path.insert(0, str(Path(__file__).parent / "rig"))
from build_rig import build_rig, obstacle

FILES = [
    *Path(cuda.__path__[0]).glob("*.py"),
    Path(session_fit.__file__),
    Path(tensorrt_session.__file__),
]
RECEIVERS = {  # what our code calls an object -> its class
    "context": "IExecutionContext",
    "_context": "IExecutionContext",
    "handle": "ICudaEngine",
    "engine.handle": "ICudaEngine",
    "refitter": "Refitter",
    "config": "IRuntimeConfig",
    "prototype": "Weights",
}
LOCAL = {"tensorrt_session.py": {"engine": "ICudaEngine", "_engine": "ICudaEngine", "runtime": "Runtime"},
         "session_fit.py": {"runtime": "Runtime"}}  # fmt: skip
ASKED_FOR = {  # by getattr or hasattr: only TensorRT-RTX has them
    ("Runtime", "get_engine_validity", 1),
    ("IExecutionContext", "is_stream_capturable", 1),
}
RTX_ONLY = {
    *(named[:2] for named in ASKED_FOR),
    ("IRuntimeConfig", "create_runtime_cache"),
    ("IRuntimeConfig", "set_runtime_cache"),
    ("IRuntimeConfig", "dynamic_shapes_kernel_specialization_strategy"),
    ("DynamicShapesKernelSpecializationStrategy", "EAGER"),
    ("EngineValidity", "INVALID"),
    ("EngineInvalidityDiagnostics", "__members__"),
}
DUMP = """
import importlib, json, sys
module = importlib.import_module(sys.argv[1])
def docs(owner): return {n: getattr(owner, n).__doc__ or "" for n in dir(owner)}
print(json.dumps({"": docs(module)} | {n: docs(getattr(module, n)) for n in dir(module)
      if isinstance(getattr(module, n), type)}))
"""


def dotted(node):
    """a.b.c of an expression; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def used():
    """Every (class, member, number of arguments it is called with, None for an attribute)."""
    found = set(ASKED_FOR)
    for file in FILES:
        receivers = RECEIVERS | LOCAL.get(file.name, {})
        tree = ast.parse(file.read_text(encoding="utf-8"))
        calls = {id(n.func): n for n in ast.walk(tree) if isinstance(n, ast.Call)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            chain = dotted(node.value).removeprefix("self.")
            call = calls.get(id(node))
            count = None if call is None else len(call.args) + len(call.keywords)
            if re.fullmatch(r"(.*\.)?trt\.\w+", chain):
                found.add((chain.rpartition(".")[2], node.attr, count))
            elif re.fullmatch(r"(.*\.)?trt", chain) and call is not None:
                found.add((node.attr, "__init__", count))
            elif chain in receivers and not node.attr.startswith("_"):
                found.add((receivers[chain], node.attr, count))
    return found


def takes(doc, name, count):
    """Whether one of the overloads in pybind's docstring takes `count` arguments."""
    for signature in re.findall(rf"(?m)\b{name}\((.*)\) ->", doc):
        parts = [p for p in re.split(r", (?=\w+:)", signature) if not p.startswith("self")]
        needed = sum("=" not in part for part in parts)
        if needed <= count <= len(parts):
            return True
    return False


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """What `tensorrt_rtx` or, over the rig, `tensorrt` has."""

    def read(module):
        env = dict(os.environ)
        if module == "tensorrt":
            if obstacle():
                pytest.skip(str(obstacle()))
            env["PYTHONPATH"] = str(build_rig(tmp_path_factory.mktemp("rig")))
        done = subprocess.run(
            [sys.executable, "-c", DUMP, module],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    return read


@pytest.mark.parametrize("module", ["tensorrt_rtx", "tensorrt"])
def test_every_name_exists_and_takes_its_arguments(dump, module):
    has, names = dump(module), used()
    assert len(names) > 40 and ("ICudaEngine", "refittable", None) in names
    wrong = []
    for owner, member, count in names:
        doc = has.get(owner, {}).get(member)
        if (owner, member) in RTX_ONLY and module == "tensorrt":
            assert doc is None, f"{owner}.{member} is there by now: drop the exception"
        elif doc is None or (count is not None and not takes(doc, member, count)):
            wrong.append((owner, member, count, doc))
    assert not wrong


def test_a_name_or_argument_too_many_is_noticed(dump):
    has = dump("tensorrt_rtx")
    doc = has["IExecutionContext"]["set_tensor_address"]
    assert [takes(doc, "set_tensor_address", n) for n in (1, 2, 3)] == [False, True, False]
    doc = has["ICudaEngine"]["create_execution_context"]
    assert [takes(doc, "create_execution_context", n) for n in (0, 1, 2)] == [True, True, False]
    assert "set_tensor_adress" not in has["IExecutionContext"]


def test_the_fake_has_nothing_that_the_real_one_lacks(dump):
    has = dump("tensorrt_rtx")
    for kind, name in (
        (Context, "IExecutionContext"),
        (Engine, "ICudaEngine"),
        (Refitter, "Refitter"),
    ):
        mine = {member for member in vars(kind) if not member.startswith("_")}
        assert mine <= has[name].keys(), name
    module = {name for name in vars(FakeTensorRT(FakeCuda())) if name[0].isupper()}
    assert module <= has[""].keys()
