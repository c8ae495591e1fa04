"""Compiling: the record and files of a good build, and one typed error with nothing left behind for every bad one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from engine_graphs import HIDDEN, Chain, fp8_linear, model_of, write
from onnx import TensorProto, helper

from blockforge.core.errors import ArtefactError, BuildError, UnavailableError, UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.engines import building
from blockforge.engines.compile import BuildOptions, CompileRequest, compile_engine
from blockforge.engines.layers_file import load_layers
from blockforge.engines.preflight import Table
from blockforge.engines.target import Target

RTX, ORT = Target.parse("tensorrt-rtx:sm89"), Target.parse("onnxruntime:cpu")
PROFILE = {"hidden_states": ShapeRange((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 32, HIDDEN))}


def request(model, folder, target=RTX, profile=PROFILE, **rest):
    return CompileRequest(write(model, folder), target, profile, folder, **rest)


def left_in(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def children():
    """Process ids of our own build children (Linux); other tests' helpers in this process are none."""
    ours = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return sorted(set(map(int, ours)) & set(builder_running()))


@pytest.mark.parametrize("target", ["tensorrt-rtx:sm89", "tensorrt-rtx:sm120"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_build_writes_plan_layers_and_record(dtype, target, tmp_path):
    steps = []
    asked = request(Chain(dtype, blocks=3).build(), tmp_path, Target.parse(target), num_blocks=3)
    record = compile_engine(asked, steps.append)
    slug = target.replace(":", "-")
    assert left_in(tmp_path / "engines") == [f"{slug}.layers.json", f"{slug}.plan"]
    assert record.path == f"engines/{slug}.plan" and record.layers == f"engines/{slug}.layers.json"
    assert record.bytes == (tmp_path / record.path).stat().st_size
    assert record.target == target and record.runtime.startswith("tensorrt-rtx 1.7.1")
    layers = load_layers(tmp_path / record.layers)
    assert layers.device_kernels == record.kernels and layers.num_blocks == 3
    assert layers.kernels_per_block == record.kernels_per_block
    assert record.dtypes == {dtype: record.kernels}
    assert "inlined blockforge::SwiGLU (3x)" in record.legalized
    assert any("TRT_decomposable" in line for line in record.legalized) == (dtype == "fp32")
    assert {s.stage for s in steps} == {f"compile {target}"}
    assert any(s.total and s.done == s.total for s in steps)


def test_kernels_per_block_is_what_one_more_block_adds(tmp_path):
    counts = []
    for blocks in (4, 5):
        record = compile_engine(
            request(Chain("fp16", blocks=blocks).build(), tmp_path, num_blocks=blocks)
        )
        counts.append(record.kernels)
    assert record.kernels_per_block == counts[1] - counts[0]


def test_one_block_out_of_the_middle(tmp_path):
    record = compile_engine(
        request(Chain("fp16", blocks=1, first=7).build(), tmp_path, num_blocks=1)
    )
    assert record.kernels_per_block == record.kernels  # everything in it belongs to layers.7


def test_weights_are_neither_copied_nor_moved(tmp_path):
    asked = request(Chain("fp32", blocks=1).build(), tmp_path)
    before = {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in tmp_path.iterdir()}
    compile_engine(asked)
    assert {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in before} == before
    assert left_in(tmp_path) == sorted(
        ["engines", "model.onnx", "model.onnx.data"]
        + [f"engines/tensorrt-rtx-sm89.{end}" for end in ("plan", "layers.json")]
    )


def test_options_reach_the_builder(tmp_path):
    options = BuildOptions(workspace_bytes=1 << 28, optimization_level=1, tf32=False)
    assert compile_engine(
        request(Chain("fp32", blocks=1).build(), tmp_path, options=options)
    ).kernels
    with pytest.raises(UsageError, match="optimization level 99"):
        bad = BuildOptions(optimization_level=99)  # TensorRT sets 5 without a word
        compile_engine(request(Chain("fp32", blocks=1).build(), tmp_path, options=bad))


def test_a_graph_without_dynamic_axes(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="MatMul")
    edge = ("fp16", [4, HIDDEN])
    model = model_of([node], {"x": edge}, {"y": edge}, {"w": np.eye(HIDDEN, dtype=np.float16)})
    profile = {"x": ShapeRange(*[(4, HIDDEN)] * 3)}
    for target in (RTX, ORT):
        assert compile_engine(request(model, tmp_path, target, profile)).bytes


def test_onnxruntime_writes_the_nodes_it_ran_and_no_weights(tmp_path):
    record = compile_engine(request(Chain("fp32", blocks=2).build(), tmp_path, ORT, num_blocks=2))
    assert left_in(tmp_path / "engines") == ["onnxruntime-cpu.layers.json"]
    assert record.path is None and record.kernels is None and record.kernels_per_block is None
    assert record.bytes == sum(p.stat().st_size for p in tmp_path.glob("model.onnx*"))
    kernels = load_layers(tmp_path / record.layers).kernels
    ran = {k.type for k in kernels}
    assert {"MatMul", "Attention", "RMSNormalization", "RotaryEmbedding"} <= ran
    assert sum(k.type == "MatMul" for k in kernels) == 14
    assert {k.tactic for k in kernels} == {"CPUExecutionProvider"}


def test_onnxruntime_shows_that_it_widens_fp16(tmp_path):
    record = compile_engine(request(Chain("fp16", blocks=1).build(), tmp_path, ORT))
    assert record.dtypes["fp32"] > record.dtypes["fp16"]  # inserted casts: no judge of fp16


# ---- bad inputs: (what is done to a good request) -> error class and words


def corrupt(asked):
    asked.model.write_bytes(b"\x08\x07" + os.urandom(200))


def cut_short(asked):
    asked.model.write_bytes(asked.model.read_bytes()[:-100])


def no_data(asked):
    (asked.folder / "model.onnx.data").unlink()


def short_data(asked):
    os.truncate(asked.folder / "model.onnx.data", 1000)


def no_file(asked):
    asked.model.unlink()


BAD_FILES = [
    (corrupt, ArtefactError, "model.onnx"),
    (cut_short, ArtefactError, "model.onnx"),
    (no_data, ArtefactError, "model.onnx.data"),
    (short_data, ArtefactError, "model.onnx.data"),
    (no_file, UsageError, "model.onnx"),
]


@pytest.mark.parametrize("target", [RTX, ORT], ids=str)
@pytest.mark.parametrize(
    ("damage", "kind", "words"), BAD_FILES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_damaged_model_is_one_error(damage, kind, words, target, tmp_path):
    asked = request(Chain("fp16", blocks=1).build(), tmp_path, target)
    damage(asked)
    with pytest.raises(kind, match=words):
        compile_engine(asked)
    assert not (tmp_path / "engines").exists()


def decoder_step():
    """x [b, s, 64] and past [b, p, 64] with dynamic axes, c static."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["kv"], axis=1),
        helper.make_node("Transpose", ["kv"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "kt"], ["s"]),
        helper.make_node("MatMul", ["s", "kv"], ["o"]),
        helper.make_node("Add", ["o", "c"], ["y"]),
    ]
    inputs = {
        "x": ("fp16", ["b", "s", 64]),
        "past": ("fp16", ["b", "p", 64]),
        "c": ("fp16", [1, 64]),
    }
    return model_of(nodes, inputs, {"y": ("fp16", ["b", "s", 64])})


GOOD = {
    "x": ((1, 1, 64), (2, 16, 64), (4, 128, 64)),
    "past": ((1, 1, 64), (2, 64, 64), (4, 512, 64)),
    "c": ((1, 64),) * 3,
}
BAD_PROFILES = {
    "missing input": ({"past": None}, "no sizes for past"),
    "unknown name": ({"post": ((1,),) * 3}, "unknown input post"),
    "min > opt": ({"x": ((3, 1, 64), (2, 16, 64), (4, 128, 64))}, r"'x': axis 0 \(b\) has min 3, opt 2"),
    "opt > max": ({"x": ((1, 1, 64), (2, 300, 64), (4, 128, 64))}, r"'x': axis 1 \(s\) has .*opt 300, max 128"),
    "opt not between": ({"x": ((1, 100, 64), (2, 164, 64), (4, 128, 64))}, "axis 1"),
    "static axis": ({"x": ((1, 1, 32), (2, 16, 64), (4, 128, 128))}, "axis 2 is 32..64..128, but static"),
    "wrong rank": ({"x": ((1, 64), (2, 64), (4, 64))}, "rank 2"),
    "batch disagrees": ({"past": ((5, 1, 64), (6, 64, 64), (8, 512, 64))}, "axis 'b'"),
    "empty past": ({"past": ((1, 0, 64), (2, 64, 64), (4, 512, 64))}, r"axis 1 \(p\) starts at 0"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), BAD_PROFILES.values(), ids=BAD_PROFILES)
def test_a_profile_mistake_names_input_axis_and_rule(change, words, tmp_path):
    shapes = {n: s for n, s in (GOOD | change).items() if s}
    profile = {name: ShapeRange(*sizes) for name, sizes in shapes.items()}
    with pytest.raises(UsageError, match=words):
        compile_engine(request(decoder_step(), tmp_path, profile=profile))
    assert not (tmp_path / "engines").exists()


def test_near_miss_the_right_profile_builds(tmp_path):
    profile = {name: ShapeRange(*sizes) for name, sizes in GOOD.items()}
    assert compile_engine(request(decoder_step(), tmp_path, profile=profile)).kernels


def non_zero(folder):
    node = helper.make_node("NonZero", ["x"], ["y"], name="find/NonZero")
    model = model_of([node], {"x": ("fp16", ["b", 8])}, {"y": (TensorProto.INT64, [2, "n"])})
    return request(model, folder, profile={"x": ShapeRange((1, 8), (2, 8), (4, 8))})


def test_a_refused_form_is_said_before_the_builder_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(building, "run_job", None)
    with pytest.raises(
        BuildError, match=r"'find/NonZero': operator NonZero.*operator\.plugin"
    ) as error:
        compile_engine(non_zero(tmp_path))
    assert error.value.fix and error.value.exit_code == 4
    assert not (tmp_path / "engines").exists()


def test_a_parse_error_comes_in_tensorrts_words_and_names_the_node(tmp_path, monkeypatch):
    """Where the table was measured on another version, the parser has the word."""
    monkeypatch.setattr(Table, "binding", False)
    with pytest.raises(BuildError, match=r"cannot parse.*find/NonZero.*NonZero.*plugin") as error:
        compile_engine(non_zero(tmp_path))
    assert "unknown to TensorRT" in error.value.fix and error.value.exit_code == 4
    assert not (tmp_path / "engines").exists()


def test_fp8_needs_an_architecture_that_has_it(tmp_path):
    profile = {"x": ShapeRange((1, HIDDEN), (2, HIDDEN), (4, HIDDEN))}
    asked = request(fp8_linear(), tmp_path, Target.parse("tensorrt-rtx:sm80"), profile)
    with pytest.raises(BuildError, match=r"fp8_e4m3.*sm89 or newer"):
        compile_engine(asked)
    record = compile_engine(request(fp8_linear(), tmp_path, RTX, profile))
    assert "fp8_e4m3" in record.dtypes and not record.violations


def test_an_architecture_that_the_library_lacks(tmp_path):
    asked = request(Chain("fp16", blocks=1).build(), tmp_path, Target("tensorrt-rtx", "sm90"))
    with pytest.raises(UsageError, match=r"sm90.*sm89"):
        compile_engine(asked)


def test_a_missing_runtime_is_said_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("blockforge.engines.requirements.is_installed", lambda runtime: False)
    asked = CompileRequest(tmp_path / "none.onnx", Target.parse("tensorrt:sm90"), {}, tmp_path)
    with pytest.raises(UnavailableError, match="tensorrt:sm90"):
        compile_engine(asked)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission(tmp_path):
    asked = request(Chain("fp16", blocks=1).build(), tmp_path)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UsageError, match="cannot write"):
            compile_engine(asked)
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_is_a_file(tmp_path):
    asked = request(Chain("fp16", blocks=1).build(), tmp_path)
    (tmp_path / "engines").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write there"):
        compile_engine(asked)


def test_a_full_disk_is_one_error(tmp_path, monkeypatch):
    """/dev/full takes no byte: the plan cannot be written."""
    asked = request(Chain("fp16", blocks=1).build(), tmp_path)
    run_job = building.run_job

    def to_full(what, job, *rest, **named):
        return run_job(what, job | {"plan": "/dev/full"}, *rest, **named)

    monkeypatch.setattr(building, "run_job", to_full)
    with pytest.raises((UsageError, BuildError), match="No space left"):
        compile_engine(asked)
    assert not (tmp_path / "engines").exists()


def test_an_older_engine_stays_until_the_new_one_is_whole(tmp_path):
    asked = request(Chain("fp16", blocks=1).build(), tmp_path)
    record = compile_engine(asked)
    before = (tmp_path / record.path).read_bytes()

    def kill(step):
        for child in children():
            os.kill(child, signal.SIGKILL)

    with pytest.raises(BuildError):
        compile_engine(asked, kill)
    assert (tmp_path / record.path).read_bytes() == before
    assert len(left_in(tmp_path / "engines")) == 2


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGKILL, "SIGKILL.*memory"), (signal.SIGABRT, "SIGABRT")]
)
def test_a_killed_builder_is_one_error_and_we_live(number, words, tmp_path):
    asked = request(Chain("fp16", blocks=2).build(), tmp_path)

    def kill(step):
        for child in children():
            os.kill(child, number)

    with pytest.raises(BuildError, match=words):
        compile_engine(asked, kill)
    assert not (tmp_path / "engines").exists()
    assert not children()


def test_a_hanging_builder_is_stopped(tmp_path):
    asked = request(
        Chain("fp16", blocks=2).build(), tmp_path, options=BuildOptions(timeout_seconds=0.05)
    )
    with pytest.raises(BuildError, match=r"no result after 0.05 s"):
        compile_engine(asked)
    assert not (tmp_path / "engines").exists() and not children()


SCRIPT = """
import signal, sys, pathlib
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.path.insert(0, sys.argv[2])
from test_compile import PROFILE, RTX
from blockforge.engines.compile import CompileRequest, compile_engine
folder = pathlib.Path(sys.argv[1])
def step(s):
    print("step", flush=True)
    if s.total:
        import time; time.sleep(300)
try:
    compile_engine(CompileRequest(folder / "model.onnx", RTX, PROFILE, folder), step)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def builder_running():
    """Process ids of every build child on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"blockforge.engines.build_child" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def parent_with_a_builder(folder):
    """A process that is in the middle of a build, and its build child."""
    write(Chain("fp16", blocks=2).build(), folder)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(2):  # the graph is read; the child is at work
        assert process.stdout.readline() == "step\n"
    kids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return process, [int(kid) for kid in kids]


def gone(pids):
    deadline = time.monotonic() + 60
    while left := set(pids) & set(builder_running()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return not left


def test_ctrl_c_stops_the_child_and_leaves_nothing(tmp_path):
    process, kids = parent_with_a_builder(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0].endswith("interrupted\n")
    assert gone(kids)
    assert left_in(tmp_path) == ["model.onnx", "model.onnx.data"]


def test_the_child_dies_with_its_parent(tmp_path):
    process, kids = parent_with_a_builder(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    assert gone(kids)


def test_the_graph_of_the_bundle_is_not_touched(tmp_path):
    asked = request(Chain("fp32", blocks=1).build(), tmp_path)
    before = asked.model.read_bytes()
    compile_engine(asked)
    assert asked.model.read_bytes() == before
    onnx.checker.check_model(onnx.load(asked.model))
    shutil.rmtree(tmp_path / "engines")
