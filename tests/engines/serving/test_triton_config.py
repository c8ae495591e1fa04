"""A packed model's configuration: read by Triton's real schema, held against its rules and the manifest."""

import numpy as np
import pytest
from serving_bundles import CASES, HIDDEN, hidden, make_bundle, plan, tensor
from triton_rules import SCHEMA, TAKES, dtype_name, faults, read_config

from blockforge.core.errors import UsageError
from blockforge.engines.serving.batching import batching_of
from blockforge.engines.serving.pbtxt import Word, to_pbtxt
from blockforge.engines.serving.triton_repository import PackOptions, pack_triton
from blockforge.engines.serving.wire_types import TRITON_BACKENDS, WIRE
from blockforge.engines.target import Target


def pack(bundle, repository, *targets, **options):
    parsed = [Target.parse(t) for t in targets or ("onnxruntime:cpu",)]
    return pack_triton(bundle, repository, targets=parsed, options=PackOptions(**options))


@pytest.fixture(scope="module")
def folder(bundle, tmp_path_factory):
    (model,) = pack(bundle, tmp_path_factory.mktemp("repository"), instances=2, delay=250)
    return model.path


def test_the_configuration_says_what_the_manifest_says(bundle, folder):
    config = read_config(folder)
    assert faults(folder, config) == []
    assert (config.name, config.backend, config.max_batch_size) == ("chain", "onnxruntime", 8)
    for ours, theirs in (
        (bundle.manifest.variants[0].inputs, config.input),
        (bundle.manifest.variants[0].outputs, config.output),
    ):
        assert [t.name for t in ours] == [t.name for t in theirs]
        assert [list(t.dims) for t in theirs] == [[-1, HIDDEN]]  # without the batch
        assert [dtype_name(t.data_type) for t in theirs] == ["FP32"]
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 8]  # the profile's opt, max
    assert config.dynamic_batching.max_queue_delay_microseconds == 250
    (group,) = config.instance_group
    assert (group.count, group.kind) == (2, SCHEMA.ModelInstanceGroup.KIND_CPU)
    assert config.version_policy.latest.num_versions == 1
    assert not config.model_transaction_policy.decoupled
    assert config.parameters["blockforge.precision"].string_value == "fp32"


def test_the_warm_up_is_the_golden_inputs(folder):
    warm_ups = {w.name: w for w in read_config(folder).model_warmup}
    assert set(warm_ups) == set(CASES) - {"text 1/2"}  # sizes that were there already
    for number, (name, (batch, sequence)) in enumerate(CASES.items()):
        if name not in warm_ups:
            continue
        assert warm_ups[name].batch_size == batch
        entry = warm_ups[name].inputs["hidden_states"]
        stored = np.fromfile(folder / "warmup" / entry.input_data_file, "<f4")
        expected = hidden(batch, sequence, seed=number)[0]  # one row, which Triton repeats
        np.testing.assert_array_equal(stored.reshape(list(entry.dims)), expected)


# what is spoiled -> (how, the rule that says so)
SPOILED = {
    "preferred above max": (lambda c: c.dynamic_batching.preferred_batch_size.append(9), "preferred_batch_size"),
    "another name": (lambda c: setattr(c, "name", "other"), "name"),
    "no dims": (lambda c: c.input[0].ClearField("dims"), "input dims"),
    "a dim of zero": (lambda c: c.output[0].dims.append(0), "output dims"),
    "no type": (lambda c: c.input[0].ClearField("data_type"), "input data_type"),
    "a type that ORT lacks": (lambda c: setattr(c.input[0], "data_type", SCHEMA.TYPE_BF16), "input data_type"),
    "platform": (lambda c: setattr(c, "platform", "tensorrt_plan"), "platform"),
    "profile": (lambda c: c.instance_group[0].profile.append("0"), "profile"),
    "no versions kept": (lambda c: c.ClearField("version_policy"), "version_policy"),
    "short warm-up": (lambda c: c.model_warmup[1].inputs["hidden_states"].dims.__setitem__(0, 8), "warm-up file"),
    "batch of warm-up": (lambda c: setattr(c.model_warmup[0], "batch_size", 9), "warm-up batch"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "rule"), SPOILED.values(), ids=SPOILED)
def test_the_rules_see_a_spoiled_configuration(folder, spoil, rule):
    config = read_config(folder)
    spoil(config)
    assert rule in faults(folder, config)


def test_every_type_of_ours_is_in_the_schema_or_refused():
    names = set(SCHEMA.DataType.keys())
    assert {f"TYPE_{name}" for name in WIRE.values()} <= names
    for backend, types in TRITON_BACKENDS.items():
        assert {WIRE[dtype] for dtype in types} == TAKES[backend]


@pytest.mark.parametrize(
    ("dtype", "target"),
    [("bf16", "onnxruntime:cpu"), ("fp8_e4m3", "tensorrt:sm90"), ("fp64", "tensorrt:sm90")],
)
def test_a_type_that_triton_lacks_is_refused_with_the_fix(tmp_path, dtype, target):
    records = {"inputs": (tensor("hidden_states", ("batch", "sequence", HIDDEN), dtype),)}
    spoiled = make_bundle(tmp_path / "b", golden=False, engines=(plan("tensorrt:sm90"),), **records)
    with pytest.raises(UsageError, match=f'hidden_states.*no type for {dtype}.*io = "fp32"'):
        pack(spoiled, tmp_path / "repository", target)
    assert not (tmp_path / "repository").exists()


def test_a_plan_of_full_tensorrt(tmp_path):
    packed = make_bundle(tmp_path / "b", engines=(plan("tensorrt:sm90"), plan("tensorrt:sm80")))
    models = pack(packed, tmp_path / "r", "tensorrt:sm90", "tensorrt:sm80", "onnxruntime:cuda")
    assert [m.name for m in models] == [f"chain-{s}" for s in ("tensorrt-sm90", "tensorrt-sm80", "onnxruntime-cuda")]  # fmt: skip
    for model in models:
        config = read_config(model.path)
        assert faults(model.path, config) == []
        assert config.instance_group[0].kind == SCHEMA.ModelInstanceGroup.KIND_GPU
    config = read_config(models[0].path)
    assert (config.backend, config.platform) == ("tensorrt", "tensorrt_plan")
    assert list(config.instance_group[0].profile) == ["0"]
    assert (models[0].path / "1" / "model.plan").read_bytes() == b"a plan of tensorrt:sm90"
    assert any("tensorrt 11.4.0" in note and "sm90" in note for note in models[0].notes)


def test_a_plan_of_tensorrt_rtx_is_refused(tmp_path):
    packed = make_bundle(tmp_path / "b", engines=(plan("tensorrt-rtx:sm89", "tensorrt-rtx 1.7.1"),))
    with pytest.raises(UsageError, match=r"libnvinfer.*no backend.*onnxruntime:cuda"):
        pack(packed, tmp_path / "r", "onnxruntime:cpu", "tensorrt-rtx:sm89")
    assert not (tmp_path / "r").exists()
    with pytest.raises(UsageError, match=r"the bundle has tensorrt-rtx:sm89.*blockforge compile"):
        pack(packed, tmp_path / "r", "tensorrt:sm90")


BATCHED = tensor("x", ("batch", "sequence"))
PROFILE = {"x": [(1, 1), (2, 8), (4, 16)], "m": [(1, 1), (1, 8), (1, 16)]}
# what stands in the way of joining -> (the other input, the profile of x, words of the reason)
APART = {
    "another first axis": (tensor("m", ("sequence", "batch")), None, "m is not batched on axis 0"),
    "a fixed first axis": (tensor("m", (1, "sequence")), None, "m is not batched on axis 0"),
    "a scalar": (tensor("m", ()), None, "its axes are none"),
    "the batch twice": (tensor("m", ("batch", "batch")), None, "m is not batched"),
    "a batch of two at least": (None, [(2, 1), (2, 8), (4, 16)], "starts at a batch of 2"),
}


@pytest.mark.parametrize(("other", "sizes", "words"), APART.values(), ids=APART)
def test_what_cannot_be_joined_says_why(other, sizes, words):
    from blockforge.core.shapes import ShapeRange

    profile = {n: ShapeRange(*s) for n, s in (PROFILE | ({"x": sizes} if sizes else {})).items()}
    inputs = (BATCHED, other) if other else (BATCHED,)
    batching = batching_of(inputs, (BATCHED,), [profile])
    assert batching.limit == 0 and words in batching.reason
    assert batching_of((BATCHED,), (BATCHED,), [{"x": ShapeRange(*PROFILE["x"])}]).limit == 4


def test_the_largest_batch_is_capped_but_not_beyond_the_profile(bundle, tmp_path):
    (model,) = pack(bundle, tmp_path, max_batch=4)
    config = read_config(model.path)
    assert config.max_batch_size == model.max_batch == 4
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 4]
    assert faults(model.path, config) == []
    (one,) = pack(bundle, tmp_path, max_batch=1, name="one")
    assert not read_config(one.path).HasField("dynamic_batching")
    for wrong, words in ((0, "1 or more"), (9, "profile ends at 8")):
        with pytest.raises(UsageError, match=words):
            pack(bundle, tmp_path, max_batch=wrong, name="wrong")


def test_an_input_that_is_not_batched_keeps_all_its_dims(tmp_path):
    """An input that stays the same for the whole batch: Triton must not see a batch at all."""
    from engine_graphs import model_of
    from onnx import helper

    edges = {"x": ("fp32", ["batch", 4]), "scale": ("fp32", [4])}
    model = model_of([helper.make_node("Mul", ["x", "scale"], ["y"])], edges, {"y": edges["x"]})
    sizes = {"x": ((1, 4), (2, 4), (8, 4)), "scale": ((4,), (4,), (4,))}
    made = make_bundle(tmp_path / "b", model=model, profile=sizes, golden=False)
    (packed,) = pack(made, tmp_path / "r")
    config = read_config(packed.path)
    assert faults(packed.path, config) == []
    assert config.max_batch_size == 0 and not config.HasField("dynamic_batching")
    assert {io.name: list(io.dims) for io in config.input} == {"x": [-1, 4], "scale": [4]}
    assert any("scale is not batched" in note for note in packed.notes)
    assert any("no warm-up" in note for note in packed.notes)


@pytest.mark.parametrize(("dims", "batched"), [(("batch",), True), ((), False)])
def test_a_rank_one_tensor_is_reshaped_and_a_scalar_refused(tmp_path, dims, batched):
    edge = tensor("y", dims)
    inputs = (tensor("hidden_states", ("batch", "sequence", HIDDEN)),)
    made = make_bundle(tmp_path / "b", golden=False, inputs=inputs, outputs=(edge,))
    if not batched:
        with pytest.raises(UsageError, match=r"'y'.*scalar"):
            pack(made, tmp_path / "r")
        return
    (packed,) = pack(made, tmp_path / "r")
    config = read_config(packed.path)
    assert faults(packed.path, config) == []
    assert list(config.output[0].dims) == [1] and list(config.output[0].reshape.shape) == []
    assert config.output[0].HasField("reshape")


def test_text_survives_the_text_format():
    hard = 'a "quoted" C:\\new\nwith é and \x00'
    text = to_pbtxt({"name": hard, "input": [{"name": hard, "data_type": Word("TYPE_FP32"), "dims": [-1]}]})  # fmt: skip
    from google.protobuf import text_format

    config = text_format.Parse(text, SCHEMA.ModelConfig())
    assert (config.name, config.input[0].name) == (hard, hard)
    with pytest.raises(TypeError):
        to_pbtxt({"name": 1.5})
