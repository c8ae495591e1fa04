"""Sessions on ONNX Runtime for real: memory of any library in and out, every element type, threads, layers, close."""

import gc
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import torch
from engine_graphs import HIDDEN, Chain, model_of, write
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from blockforge.core.errors import BuildError, UnavailableError, UsageError
from blockforge.engines.session import Pointer, Session, SessionOptions


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(Chain("fp32", blocks=1).build(), tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).standard_normal((2, 5, HIDDEN)).astype(np.float32)


@pytest.fixture(scope="module")
def truth(path, x):
    """What ONNX's reference makes of x."""
    return ReferenceEvaluator(str(path)).run(None, {"hidden_states": x})[0]


def close_to(actual, truth):
    """As in test_session: about ten products of 64 to 128 terms."""
    bound = 10 * np.sqrt(128) * np.finfo(np.float32).eps * np.abs(truth).max()
    np.testing.assert_allclose(actual, truth, rtol=0, atol=bound)


@pytest.mark.parametrize(
    "give",
    [
        lambda x: x,
        torch.tensor,
        lambda x: torch.tensor(x).transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: Pointer(x.ctypes.data, x.shape, "fp32"),
        np.asfortranarray,
    ],
    ids=["numpy", "torch", "torch strided", "pointer", "numpy strided"],
)
def test_inputs_of_any_library(path, x, truth, give):
    with Session(path) as session:
        close_to(session.run({"hidden_states": give(x)})["output"], truth)


@pytest.mark.parametrize(
    "room",
    [
        lambda shape: np.zeros(shape, np.float32),
        lambda shape: torch.zeros(shape),
    ],
    ids=["numpy", "torch"],
)
def test_outputs_into_the_callers_memory(path, x, truth, room):
    given = room(x.shape)
    with Session(path) as session:
        for _ in range(2):
            results = session.run({"hidden_states": x}, outputs={"output": given})
            assert results["output"] is given
            close_to(np.asarray(given), truth)


def test_an_output_by_its_address(path, x, truth):
    array = np.zeros(x.shape, np.float32)
    where = Pointer(array.ctypes.data, x.shape, "fp32")
    with Session(path) as session:
        assert session.run({"hidden_states": x}, outputs={"output": where})["output"] is where
    close_to(array, truth)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"logits": np.zeros(1)}, "unknown output logits.*The outputs are output"),
        ({"output": np.zeros((2, 6, HIDDEN), np.float32)}, r"axis 1 \(sequence\) has 6, hidden"),
        ({"output": np.zeros((2, 5, 32), np.float32)}, "axis 2 has 32, not 64"),
        ({"output": np.zeros((2, 5, HIDDEN))}, "float64 elements"),
        ({"output": np.zeros((HIDDEN, 5, 2), np.float32).T}, "not row-major"),
    ],
)
def test_outputs_that_do_not_fit(path, x, outputs, words):
    with Session(path) as session, pytest.raises(UsageError, match=words):
        session.run({"hidden_states": x}, outputs=outputs)


def cast_graph(kind, folder):
    """x as `kind` -> a in fp32; b in fp32 -> y as `kind`."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["b"], ["y"], to=kind),
    ]
    n = ["n"]
    model = model_of(nodes, {"x": (kind, n), "b": ("fp32", n)}, {"a": ("fp32", n), "y": (kind, n)})
    return write(model, folder)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT16, np.float16),
        (TensorProto.BOOL, np.bool_),
    ],
    ids=["bf16", "fp8", "fp16", "bool"],
)
def test_element_types_that_numpy_lacks(tmp_path, kind, dtype):
    wide = np.array([0, 1, 1.5, -3, 100], np.float32)
    narrow = wide.astype(dtype)
    room = np.zeros(5, dtype)
    with Session(cast_graph(kind, tmp_path)) as session:
        for outputs in ({}, {"y": room}):
            results = session.run({"x": narrow, "b": wide}, outputs=outputs)
            np.testing.assert_array_equal(results["a"], narrow.astype(np.float32))
            assert results["y"].dtype == np.dtype(dtype)
            np.testing.assert_array_equal(results["y"], narrow)
        tensor = torch.from_dlpack(session.enqueue({"x": narrow, "b": wide})["y"])
    gc.collect()
    assert torch.equal(tensor.float(), torch.tensor(narrow.astype(np.float32)))


def test_results_outlive_the_session(path, x, truth):
    with Session(path) as session:
        result = session.run({"hidden_states": x})["output"]
        later = session.enqueue({"hidden_states": x})["output"]
    gc.collect()
    close_to(result, truth)
    later.wait()
    assert later.shape == x.shape and later.dtype.value == "fp32"
    close_to(later.numpy(), truth)
    result[:] = 0


def test_results_are_the_callers_own(tmp_path):
    """What passes through, and what is constant, is copied: writing it changes neither the feed nor the model."""
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in ("xz", "wy")]
    n = ("fp32", ["n"])
    weights = {"w": np.arange(300, dtype=np.float32)}
    model = model_of(nodes, {"x": n}, {"z": n, "y": ("fp32", [300])}, weights)
    x = np.ones(4, np.float32)
    with Session(write(model, tmp_path)) as session:
        for _ in range(2):
            results = session.run({"x": x})
            np.testing.assert_array_equal(results["z"], np.ones(4))
            np.testing.assert_array_equal(results["y"], np.arange(300))
            results["z"][:] = results["y"][:] = -1


def test_a_shape_that_depends_on_values_is_checked_by_the_runtime(tmp_path):
    edge = {"where": (TensorProto.INT64, [1, "found"])}
    model = model_of([helper.make_node("NonZero", ["x"], ["where"])], {"x": ("fp32", ["n"])}, edge)
    x, room = np.array([0, 1, 0, 2], np.float32), np.full((1, 8), -1)
    with Session(write(model, tmp_path)) as session:
        assert session.run({"x": x})["where"].tolist() == [[1, 3]]
        fits = np.zeros((1, 2), np.int64)
        assert session.run({"x": x}, outputs={"where": fits})["where"].tolist() == [[1, 3]]
        for size in (1, 3):
            with pytest.raises(BuildError, match="where"):
                session.run({"x": x}, outputs={"where": room[:, :size]})
    assert (room == -1).all()


def test_nodes_are_timed_by_a_callback(path, x, truth):
    heard = {}
    with Session(path) as session:
        start = time.monotonic()
        results = session.run({"hidden_states": x}, on_layer=heard.__setitem__)
        whole = time.monotonic() - start
        close_to(results["output"], truth)
        close_to(session.run({"hidden_states": x})["output"], truth)
        with pytest.raises(UsageError, match="inside a run"):
            session.run({"hidden_states": x}, on_layer=lambda *_: session.close())
    assert "layers.0.self_attn.q_proj" in {name.split("/")[0] for name in heard}
    assert min(heard.values()) >= 0 and 0 < sum(heard.values()) < whole


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda s, x: s.run({"hidden_states": x}, stream=7), "no CUDA streams"),
        (lambda s, x: s.enqueue({"hidden_states": x}, stream=7), "no CUDA streams"),
        (lambda s, x: s.refit({"w": x}), "cannot exchange weights"),
    ],
)
def test_what_only_a_gpu_has(path, x, truth, use, words):
    with Session(path) as session:
        with pytest.raises(UsageError, match=words):
            use(session, x)
        close_to(session.run({"hidden_states": x})["output"], truth)
    with pytest.raises(UsageError, match="only TensorRT's targets have"):
        Session(path, options=SessionOptions(cuda_graphs=1))


def test_threads_share_a_session(path, x):
    """Six threads of different sizes through two contexts: each gets the numbers of its own feed."""
    reference = ReferenceEvaluator(str(path))
    feeds = [x[: 1 + n % 2, : 1 + n % 5] for n in range(6)]
    truths = [reference.run(None, {"hidden_states": f})[0] for f in feeds]
    wrong = []

    def work(n):
        try:
            for _ in range(4):
                close_to(session.run({"hidden_states": feeds[n]})["output"], truths[n])
        except BaseException as error:
            wrong.append(error)

    with Session(path, options=SessionOptions(contexts=2)) as session:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not wrong and 1 <= session.counts["contexts"] <= 2


def test_close_waits_for_a_run_and_refuses_the_next(path, x, monkeypatch):
    session = Session(path, options=SessionOptions(contexts=1, wait_seconds=0.05))
    inside, release, outcome = threading.Event(), threading.Event(), []

    def on_layer(*_):
        inside.set()
        assert release.wait(60)

    runner = threading.Thread(
        target=lambda: outcome.append(session.run({"hidden_states": x}, on_layer=on_layer))
    )
    runner.start()
    assert inside.wait(60)
    with pytest.raises(UnavailableError, match=r"busy for 0.05 s.*wait_seconds"):
        session.run({"hidden_states": x})
    with pytest.raises(UnavailableError, match="still going"):
        session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run({"hidden_states": x})
    release.set()
    runner.join(60)
    session.close()
    session.close()
    assert outcome


def test_a_lone_file_may_be_verified_by_its_hash(path):
    from blockforge.core.bundle import sha256_of
    from blockforge.core.errors import ArtefactError

    Session(path, verify=sha256_of(path)).close()
    with pytest.raises(ArtefactError, match="its SHA-256 is"):
        Session(path, verify="0" * 64)


def test_it_runs_without_torch(path):
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, blockforge\n"
        f"with blockforge.Session({str(path)!r}) as session:\n"
        f"    feeds = {{'hidden_states': np.ones((1, 2, {HIDDEN}), 'float32')}}\n"
        "    print(session.run(feeds)['output'].shape, session.enqueue(feeds)['output'].shape)\n"
        "import blockforge.engines.cuda.runner, blockforge.engines.cuda.runtime\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == f"(1, 2, {HIDDEN}) (1, 2, {HIDDEN})"
