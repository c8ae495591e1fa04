"""Sessions: what they compute, and every wrong use refused before the runtime sees it."""

import numpy as np
import onnx_ir as ir
import pytest
from engine_graphs import HIDDEN, Chain, write
from onnx.reference import ReferenceEvaluator

from blockforge.core.bundle import Bundle, seal
from blockforge.core.errors import ArtefactError, UnavailableError, UsageError
from blockforge.core.manifest import Manifest, RangeRecord, TensorRecord, VariantRecord
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.feeds import check_feeds
from blockforge.engines.session import Session
from blockforge.engines.signature import signature_of
from blockforge.engines.target import Target


@pytest.fixture(scope="module")
def model():
    return Chain("fp32", blocks=1).build()


@pytest.fixture(scope="module")
def bundle(model, tmp_path_factory):
    """A sealed bundle with one graph and the engine of one target."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "fp32").mkdir()
    path = write(model, folder / "fp32")
    inputs, outputs = signature_of(ir.from_proto(model))
    sizes = ((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 16, HIDDEN))
    profile = {"hidden_states": ShapeRange(*sizes)}
    request = CompileRequest(path, Target.parse("tensorrt-rtx:sm89"), profile, folder / "fp32")
    variant = VariantRecord(
        precision="fp32",
        model="fp32/model.onnx",
        opset=24,
        inputs=inputs,
        outputs=outputs,
        profile={"hidden_states": RangeRecord(min=sizes[0], opt=sizes[1], max=sizes[2])},
        operators={},
        dtypes={},
        num_blocks=1,
        engines=(compile_engine(request).under("fp32"),),
    )
    manifest = Manifest(name="t", created="2026-01-01", recipe={}, tools={}, variants=(variant,))
    seal(folder, manifest)
    return Bundle.open(folder)


def hidden(batch=2, sequence=5, dtype=np.float32, size=HIDDEN):
    return np.random.default_rng(0).standard_normal((batch, sequence, size)).astype(dtype)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (4, 16)])
def test_it_computes_what_the_reference_does(bundle, model, shape):
    x = hidden(*shape)
    (expected,) = ReferenceEvaluator(model).run(None, {"hidden_states": x})
    with Session(bundle, precision="fp32") as session:
        outputs = session.run({"hidden_states": x})
    assert list(outputs) == ["output"]
    # One block: about ten products of 64 to 128 terms, each with eps * sqrt(terms) of its own size.
    bound = 10 * np.sqrt(128) * np.finfo(np.float32).eps * np.abs(expected).max()
    np.testing.assert_allclose(outputs["output"], expected, rtol=0, atol=bound)


def test_a_bundle_a_path_and_an_onnx_file_are_the_same_session(bundle):
    x = {"hidden_states": hidden()}
    results = []
    for source in (bundle, bundle.path, str(bundle.path / "fp32" / "model.onnx")):
        with Session(source) as session:
            assert [(t.name, t.dtype) for t in session.inputs] == [("hidden_states", "fp32")]
            assert session.inputs[0].dims == ("batch", "sequence", HIDDEN)
            results.append(session.run(x)["output"])
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_a_transposed_view_is_read_right(bundle):
    x = np.asfortranarray(hidden())
    with Session(bundle) as session:
        expected = session.run({"hidden_states": hidden()})["output"]
        np.testing.assert_array_equal(session.run({"hidden_states": x})["output"], expected)


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, "nothing for hidden_states"),
        ({"hidden_states": hidden(), "mask": hidden()}, "unknown input mask.*hidden_states"),
        ({"hidden_states": hidden(dtype=np.float64)}, "float64 elements.*float32"),
        ({"hidden_states": hidden(dtype=np.float16)}, "float16 elements"),
        ({"hidden_states": hidden()[0]}, f"shape 5x{HIDDEN}.*batch, sequence, {HIDDEN}"),
        ({"hidden_states": hidden(size=32)}, f"axis 2 has 32, not {HIDDEN}"),
        ({"hidden_states": hidden(batch=5)}, r"axis 0 \(batch\) has 5, outside the profile's 1..4"),
        ({"hidden_states": hidden(sequence=17)}, r"axis 1 \(sequence\) has 17.*1..16"),
        ({"hidden_states": hidden(sequence=0)}, "has 0, outside"),
    ],
)
def test_feeds_that_do_not_fit(bundle, feeds, words):
    with Session(bundle) as session, pytest.raises(UsageError, match=words):
        session.run(feeds)


def test_axes_of_one_name_have_one_size():
    records = [
        TensorRecord(name=n, dtype="int64", dims=("batch", "sequence")) for n in ("ids", "mask")
    ]
    ids = np.zeros((2, 3), np.int64)
    assert list(check_feeds({"mask": ids, "ids": ids}, records, ())) == ["ids", "mask"]
    with pytest.raises(UsageError, match=r"'mask'.*axis 1 \(sequence\) has 4, ids has 3"):
        check_feeds({"ids": ids, "mask": np.zeros((2, 4), np.int64)}, records, ())


def test_a_scalar_stays_a_scalar():
    record = TensorRecord(name="n", dtype="int64", dims=())
    assert check_feeds({"n": np.int64(3)}, [record], ())["n"].shape == ()


def test_a_closed_session_says_so(bundle):
    session = Session(bundle)
    session.close()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run({"hidden_states": hidden()})


def test_tensorrt_needs_a_gpu_and_says_so(bundle, monkeypatch):
    for module in ("requirements", "session_fit"):
        monkeypatch.setattr(f"blockforge.engines.{module}.gpus", tuple)
    with pytest.raises(UnavailableError, match="no NVIDIA GPU") as error:
        Session(bundle, target="tensorrt-rtx:sm89")
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"precision": "fp16"}, UsageError, "the bundle has fp32"),
        ({"target": "onnxruntime:tpu"}, UsageError, "onnxruntime:cpu"),
        (
            {"target": "tensorrt-rtx:sm120"},
            ArtefactError,
            "has tensorrt-rtx:sm89.*blockforge compile",
        ),
    ],
)
def test_what_the_bundle_lacks(bundle, change, kind, words):
    with pytest.raises(kind, match=words):
        Session(bundle, **change)


def test_a_changed_file_is_refused_before_anything_is_loaded(bundle, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(bundle.path, copy)
    data = copy / "fp32" / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ArtefactError, match=r"model\.onnx\.data has another SHA-256"):
        Session(copy)
    Session(copy, verify=False).close()


def test_a_file_that_is_neither_is_refused(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"")
    with pytest.raises(UsageError, match=r"neither a bundle nor an \.onnx file nor a \.plan"):
        Session(tmp_path / "x.txt")
    with pytest.raises(ArtefactError, match=r"manifest\.json"):
        Session(tmp_path)


def test_what_is_no_mapping_of_memory_is_one_error(bundle):
    torch = pytest.importorskip("torch")
    with Session(bundle) as session:
        (name,) = (tensor.name for tensor in session.inputs)
        ids = np.zeros((1, 4), np.int64)
        for feeds, outputs in (
            (ids, None),
            (None, None),
            ([name], None),
            ({name: ids}, ["logits"]),
        ):
            with pytest.raises(UsageError, match="Give a mapping of names to arrays"):
                session.run(feeds, outputs=outputs)
        with pytest.raises(UsageError, match="no memory to read"):
            session.run({name: torch.zeros(1, 4, dtype=torch.int64, device="meta")})
    with pytest.raises(UsageError, match=r"key nowhere\.pem"):
        Session(bundle, trusted="nowhere.pem")
