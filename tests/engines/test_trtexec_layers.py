"""Layers as trtexec writes them, read by the rules of trt-engine-explorer: the keys it needs, and its words for types."""

import json
import re

import pytest
from engine_graphs import HIDDEN, INNER
from planned import bundle_of, recorded
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.errors import ArtefactError
from blockforge.engines.trtexec_layers import trtexec_layers

# What trex's Activation knows of the compiler's words (activations.py of trt-engine-explorer): word -> bytes.
WORDS = {"Half": 2, "Float": 4, "FP8": 1, "BFloat16": 2, "Int64": 8, "Int32": 4, "Int8": 1}
WORDS |= {"UInt8": 1, "Bool": 1}
WEIGHT_BYTES = {"Int8": 1, "Half": 2, "Float": 4, "Int32": 4}  # its Layer._parse_constant


def read(graph):
    """What trex's parser and Layer take from the file; KeyError where it would raise one."""
    layers = [x for x in graph["Layers"] if x["LayerType"] not in ("signal", "wait")]
    for layer in layers:
        assert isinstance(layer["Name"], str) and isinstance(layer["Metadata"], str)
        for tensor in (*layer["Inputs"], *layer["Outputs"]):
            assert tensor["Name"] and all(isinstance(d, int) for d in tensor["Dimensions"])
            assert tensor["Format/Datatype"] in WORDS
    edges = {t["Name"] for x in layers for t in (*x["Inputs"], *x["Outputs"])}
    assert graph["Bindings"] and set(graph["Bindings"]) <= edges
    weights = [x["Weights"] for x in layers if "Weights" in x]
    return layers, sum(w["Count"] * WEIGHT_BYTES[w["Type"]] for w in weights)


def test_trex_reads_the_layers_and_the_size_of_the_weights(listings):
    plan = recorded(listings)
    graph = json.loads(json.dumps(trtexec_layers(plan, ["hidden_states", "output"])))
    layers, weights = read(graph)
    assert len(layers) == len(plan.kernels)
    of_a_block = HIDDEN * 128 + HIDDEN * HIDDEN + HIDDEN * 2 * INNER + INNER * HIDDEN
    assert weights == 3 * 2 * of_a_block


@pytest.mark.parametrize("name", ["fp16_sm89", "fp8_sm120", "if_sm89", "cache_sm89"])
def test_every_word_is_the_builders_own(name, listings):
    """Against the builder's text: the same layers in the same order, types, tactics, dimensions and nodes."""
    text = [line for line in listings[name].split("\n") if line.startswith("Name: ")]
    made = trtexec_layers(recorded(listings, name), [])["Layers"]
    assert len(made) == len(text)
    for layer, line in zip(made, text, strict=True):
        assert line.startswith(f"Name: {layer['Name']}, LayerType: {layer['LayerType']}, Inputs: [")
        tensors = [*layer["Inputs"], *layer.get("Constants", []), *layer["Outputs"]]
        assert [t["Format/Datatype"] for t in tensors] == re.findall(r"Datatype: (\w+)", line)
        dims = [",".join(map(str, t["Dimensions"])) for t in tensors]
        assert dims == re.findall(r" Dimensions: \[([-\d,]*)\]", line)
        (key,) = {"TacticName", "TacticValue"} & layer.keys()
        assert f"{key}: {layer[key]}, StreamId: {layer['StreamId']}," in line
        assert re.sub(r" \| [^\]]*", "", line).endswith(f"Metadata: {layer['Metadata']}")
        assert "Location" not in layer and "ParameterType" not in layer


def inspect(*arguments):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def test_the_command(listings, tmp_path):
    plans = [
        recorded(listings),
        recorded(listings).model_copy(update={"target": "tensorrt-rtx:sm120"}),
    ]
    bundle, file = bundle_of(tmp_path / "b", {"fp16": plans}), tmp_path / "layers.json"
    made = inspect(bundle, "--precision", "fp16", "-t", "tensorrt-rtx:sm89", "--trtexec", file)
    assert made.exit_code == 0 and "block 1" in made.stdout
    assert json.loads(file.read_text())["Bindings"] == ["hidden_states", "output"]
    read(json.loads(file.read_text()))
    failed = CliRunner().invoke(app, ["diff-plan", str(file), str(file)]).exception
    assert isinstance(failed, ArtefactError) and "as trtexec writes them" in str(failed)


def test_what_cannot_be_written(listings, tmp_path):
    plans = [
        recorded(listings),
        recorded(listings).model_copy(update={"target": "tensorrt-rtx:sm120"}),
    ]
    ran = recorded(listings).model_copy(update={"target": "onnxruntime:cpu", "source": "profiler"})
    ort = bundle_of(tmp_path / "ort", {"fp16": [ran]})
    bundle = bundle_of(tmp_path / "b", {"fp16": plans})
    lone = bundle / "fp16/engines/tensorrt-rtx-sm89.layers.json"
    for arguments, words in (
        ([bundle, "--trtexec", tmp_path / "x"], "2 engines: fp16 tensorrt-rtx:sm89, fp16"),
        ([lone, "--trtexec", tmp_path / "x"], "does not name inputs and outputs"),
        ([ort, "-t", "onnxruntime:cpu", "--trtexec", tmp_path / "x"], "no layers of TensorRT"),
        ([bundle, "-t", "tensorrt-rtx:sm89", "--trtexec", tmp_path / "no/x"], "cannot write it"),
    ):
        assert words in str(inspect(*arguments).exception)
    assert not (tmp_path / "x").exists()
