"""Every weight is held against the checkpoint: a wrong row that no input reads is found too."""

import numpy as np
import onnx
import pytest

from blockforge.core.dtypes import DType
from blockforge.core.manifest import GateRecord, VerdictRecord
from blockforge.export.export import export_variant
from blockforge.export.linears.packed_file import pack_file
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.validate.weights import GATE, gate_weights, unlike_weights


@pytest.fixture(scope="module", params=[DType.FP32, DType.FP16], ids=lambda d: d.value)
def exported(request, tmp_path_factory):
    checkpoint = preset_checkpoint("llama-tiny-untied")
    folder = tmp_path_factory.mktemp("graph") / request.param.value
    export_variant(checkpoint, layer=None, precision=request.param, io=DType.FP32, folder=folder)
    return checkpoint, folder / "model.onnx"


def offset_of(model, name):
    proto = onnx.load(model, load_external_data=False)
    (tensor,) = (t for t in proto.graph.initializer if t.name == name)
    entries = {e.key: e.value for e in tensor.external_data}
    return model.with_name(entries["location"]), int(entries["offset"]), int(entries["length"])


def test_an_honest_export_has_the_checkpoint_s_weights(exported):
    assert unlike_weights(*exported) == ()


@pytest.mark.parametrize(
    "name", ["embed_tokens.weight", "layers.1.mlp.down_proj.weight", "norm.weight"]
)
def test_one_flipped_bit_in_the_last_element_is_found(exported, name):
    checkpoint, model = exported
    data, offset, length = offset_of(model, name)
    before = data.read_bytes()
    changed = bytearray(before)
    changed[offset + length - 1] ^= 0x80  # the sign
    data.write_bytes(changed)
    try:
        assert unlike_weights(checkpoint, model) == (name,)
    finally:
        data.write_bytes(before)


def test_a_weight_held_times_a_power_of_two_is_the_checkpoint_s(exported):
    checkpoint, model = exported
    name = "layers.1.mlp.down_proj.weight"
    data, offset, length = offset_of(model, name)
    before = data.read_bytes()
    kind = np.float32 if "fp32" in str(model) else np.float16
    weight = checkpoint.read(name).numpy().T  # a linear's weight lies swapped in the graph
    assert weight.astype(kind).tobytes() == before[offset : offset + length]
    scaled = np.ldexp(weight, -3).astype(kind)
    data.write_bytes(before[:offset] + scaled.tobytes() + before[offset + length :])
    try:
        assert unlike_weights(checkpoint, model, exponents={name: 3}) == ()
        assert unlike_weights(checkpoint, model, exponents={name: 2}) == (name,)
        assert unlike_weights(checkpoint, model) == (name,)
    finally:
        data.write_bytes(before)


def test_another_seed_differs_everywhere_but_in_the_constant_norms(exported):
    _, model = exported
    other = preset_checkpoint("llama-tiny-untied", seed=1)
    assert "embed_tokens.weight" in unlike_weights(other, model)


def test_the_gate_fails_the_verdict_and_names_the_weight():
    passing = GateRecord(name="x", value=0, relation="<=", limit=1, passed=True)
    verdict = VerdictRecord(runner="r", passed=True, outputs=(), gates=(passing,))
    failed = gate_weights(verdict, ("norm.weight",))
    assert not failed.passed and failed.gates[-1].name == GATE and "norm.weight" in failed.notes[0]
    assert gate_weights(verdict, ()).passed
    opinion = verdict.model_copy(update={"gates": ()})
    assert gate_weights(opinion, ("norm.weight",)) is opinion


def test_a_packed_weight_holds_the_checkpoint_s_side_by_side(exported, tmp_path):
    checkpoint, model = exported
    path = tmp_path / "packed.onnx"
    packed = pack_file(model, path)
    qkv = next(name for name in packed if "layers.1." in name and "q_proj" in name)
    stem = "layers.1.self_attn."
    assert packed[qkv] == tuple(f"{stem}{x}_proj.weight" for x in "qkv")
    assert unlike_weights(checkpoint, path, packed=packed) == ()
    data, offset, length = offset_of(path, qkv)
    changed = bytearray(data.read_bytes())
    changed[offset + length - 1] ^= 0x80  # the last column of v
    data.write_bytes(changed)
    assert unlike_weights(checkpoint, path, packed=packed) == (qkv,)
    changed[offset + length - 1] ^= 0x80
    data.write_bytes(changed)
    q, k, v = packed[qkv]
    for order in ((q, v, k), (q, k), (q, k, "nobody.weight")):
        assert unlike_weights(checkpoint, path, packed={**packed, qkv: order}) == (qkv,)
    # A packed weight that the graph lacks is no proof.
    assert unlike_weights(checkpoint, model, packed=packed) == tuple(packed)
