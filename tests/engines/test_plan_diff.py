"""Two builds compared: real ones of one graph and of two, and near misses made by hand from a recorded listing."""

import json
import random
from dataclasses import replace

import jsonschema
import pytest
from planned import build, bundle_of, recorded
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.errors import UsageError
from blockforge.engines.kernel import Kernel, TensorInfo
from blockforge.engines.layers_file import load_layers, save_layers
from blockforge.engines.plan_diff import diff_plans
from blockforge.schemas import schema_of


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Layers files of one FP16 graph built twice, and of the same graph in FP32."""
    root = tmp_path_factory.mktemp("builds")
    return [build(root / n, d)[1] for n, d in (("a", "fp16"), ("b", "fp16"), ("c", "fp32"))]


def counted(diff):
    """Every kernel of both sides that the diff accounts for."""
    a, b = len(diff.removed), len(diff.added)
    pairs = len(diff.changed) + diff.unchanged
    a += pairs + sum(len(group.a) for group in diff.regrouped)
    b += pairs + sum(len(group.b) for group in diff.regrouped)
    return a, b


def test_one_graph_built_twice_is_equal(builds):
    first, second = map(load_layers, builds[:2])
    diff = diff_plans(first, second)
    assert diff.equal and diff.unchanged + len(diff.changed) == first.device_kernels
    aspects = {c.aspect for pair in diff.changed for c in pair.changes}
    assert aspects <= {"tactic"} and not diff.dtypes and not diff.other


def test_another_precision_fuses_and_computes_otherwise(builds):
    half, single = load_layers(builds[0]), load_layers(builds[2])
    diff = diff_plans(half, single)
    assert not diff.equal and counted(diff) == (half.device_kernels, single.device_kernels)
    assert diff.dtypes == {"fp16": (half.device_kernels, 0), "fp32": (0, single.device_kernels)}
    # FP16 has one kernel for the whole attention; FP32 multiplies its matrices one by one
    whole = {k for g in diff.regrouped for k in g.a} | {p.a for p in diff.changed}
    apart = {k for g in diff.regrouped for k in g.b} | set(diff.added) | {p.b for p in diff.changed}
    attention = "layers.1.self_attn/Attention"
    assert any("mha" in k.name and attention in k.nodes for k in whole)
    assert sum(k.type == "gemm" and k.nodes == (attention,) for k in apart) == 2
    for pair in diff.changed:
        assert pair.a.nodes and set(pair.a.nodes) == set(pair.b.nodes) == set(pair.nodes)


def renamed(tensors):
    return tuple(replace(t, name=f"{t.name}_of_another_build") for t in reversed(tensors))


def rebuilt(plan):
    """The same plan as another build may write it: other names, another order of kernels and of tensors."""
    kernels = [
        replace(
            kernel,
            name=f"k{number}",
            inputs=renamed(kernel.inputs),
            constants=renamed(kernel.constants),
            outputs=renamed(kernel.outputs),
            nodes=kernel.nodes[::-1],
            stream=1,
        )
        for number, kernel in enumerate(plan.kernels)
    ]
    random.Random(0).shuffle(kernels)
    return plan.model_copy(update={"kernels": tuple(kernels)})


@pytest.mark.parametrize("name", ["fp16_sm89", "fp8_sm120", "if_sm89", "cache_sm89"])
def test_names_and_order_say_nothing(name, listings):
    plan = recorded(listings, name)
    diff = diff_plans(plan, rebuilt(plan))
    assert diff.identical and diff.unchanged == plan.device_kernels


def edited(plan, node, change):
    """The plan with the first kernel that covers `node` changed; change(kernel) -> kernels in its place."""
    index = next(i for i, k in enumerate(plan.kernels) if node in k.nodes)
    kernels = (*plan.kernels[:index], *change(plan.kernels[index]), *plan.kernels[index + 1 :])
    return plan.model_copy(update={"kernels": kernels})


def wide(tensors):
    return (replace(tensors[0], dtype="fp32"), *tensors[1:])


def longer(tensors):
    return (replace(tensors[0], dims=(*tensors[0].dims[:-1], 77)), *tensors[1:])


NORM = "layers.1.post_attention_layernorm/RMSNormalization"
DOWN, ADD = "layers.1.mlp.down_proj/MatMul", "layers.1/Add_1"
NEAR = {  # what was done to one kernel -> (the node it covers, how, whether plans stay equal, what is found)
    "tactic": (NORM, lambda k: [replace(k, tactic="other")], True, [("tactic", "")]),
    "shape": (NORM, lambda k: [replace(k, outputs=longer(k.outputs))], True, [("shape", "outputs")]),
    "input type": (
        DOWN, lambda k: [replace(k, inputs=wide(k.inputs))], False, [("dtype", "inputs")],
    ),
    "computed type": (
        NORM, lambda k: [replace(k, outputs=wide(k.outputs))], False,
        [("dtype", ""), ("dtype", "outputs")],
    ),
    "kernel type": (NORM, lambda k: [replace(k, type="runtime_fusion")], False, [("type", "")]),
}  # fmt: skip


@pytest.mark.parametrize("case", NEAR)
def test_one_kernel_changed(case, listings):
    node, change, equal, found = NEAR[case]
    plan = recorded(listings)
    diff = diff_plans(rebuilt(plan), edited(plan, node, change))
    (pair,) = diff.changed
    assert [(c.aspect, c.where) for c in pair.changes] == found and node in pair.nodes
    assert diff.equal is equal and not diff.identical
    assert not (diff.added or diff.removed or diff.regrouped)
    assert counted(diff) == (plan.device_kernels,) * 2


def test_a_fusion_lost_is_one_group(listings):
    plan = recorded(listings)
    split = edited(plan, DOWN, lambda k: [replace(k, nodes=(DOWN,)), replace(k, nodes=(ADD,))])
    for diff, groups in ((diff_plans(plan, split), (1, 2)), (diff_plans(split, plan), (2, 1))):
        (group,) = diff.regrouped
        assert (len(group.a), len(group.b)) == groups
        assert {n for k in (*group.a, *group.b) for n in k.nodes} == {DOWN, ADD}
        assert not (diff.equal or diff.changed or diff.added or diff.removed)


def test_a_kernel_more_and_a_copy_less(listings):
    plan = recorded(listings)
    new = Kernel("k", "kgen", outputs=(TensorInfo("t", "fp16", (4,)),), nodes=("layers.1/New",))
    more = plan.model_copy(update={"kernels": (*plan.kernels, new)})
    diff = diff_plans(plan, more)
    assert diff.added == (new,) and not (diff.removed or diff.changed or diff.equal)
    assert diff.dtypes == {"fp16": (37, 38)}
    bare = [k for k in plan.kernels if k.on_device and not k.nodes]
    assert len(bare) == 3  # one transposed copy a block
    less = plan.model_copy(update={"kernels": tuple(k for k in plan.kernels if k is not bare[1])})
    diff = diff_plans(plan, less)
    assert diff.removed == (bare[1],) and not (diff.added or diff.changed or diff.regrouped)


def test_work_that_is_no_kernel_is_counted(listings):
    plan = recorded(listings)
    more = plan.model_copy(update={"kernels": (*plan.kernels, Kernel("s", "signal"))})
    diff = diff_plans(plan, more)
    assert diff.equal and not diff.identical and diff.other == {"signal": (0, 1)}


def test_planned_kernels_and_nodes_that_ran_do_not_compare(listings):
    plan = recorded(listings)
    with pytest.raises(UsageError, match="profiler said"):
        diff_plans(plan, plan.model_copy(update={"source": "profiler"}))


def command(*arguments):
    result = CliRunner().invoke(app, ["diff-plan", *map(str, arguments)])
    return result.exit_code, result.stdout


def test_the_command(builds, listings, tmp_path):
    a, _, c = builds
    plan = a.with_name(a.name.replace(".layers.json", ".plan"))
    code, text = command(plan, c, "--json")
    body = json.loads(text)
    jsonschema.validate(body, schema_of("diff-plan"))
    assert code == 1 and not body["equal"] and body["b"]["kernels"] == load_layers(c).device_kernels
    code, text = command(plan, c)
    assert code == 1 and "layers.*.self_attn/Attention" in text and "not equal" in text
    save_layers(recorded(listings), tmp_path / "x.layers.json")
    tactic = edited(recorded(listings), NORM, NEAR["tactic"][1])
    save_layers(tactic, tmp_path / "y.layers.json")
    files = tmp_path / "x.layers.json", tmp_path / "y.layers.json"
    assert command(*files)[0] == 0 and command(*files, "--strict")[0] == 1
    assert "other" in command(*files)[1] and "no difference" in command(files[0], files[0])[1]


def test_the_command_on_bundles(listings, tmp_path):
    """One engine of each is chosen by name; a choice that leaves several is an error that lists them."""
    half, wide_plan = recorded(listings), edited(recorded(listings), NORM, NEAR["input type"][1])
    bundle = bundle_of(tmp_path / "b", {"fp32": [wide_plan], "fp16": [half]})
    assert command(bundle, bundle, "--precision", "fp16")[0] == 0
    both = ("--precision", "fp16", "--precision", "fp32")
    assert command(bundle, bundle, *both, "-t", "tensorrt-rtx:sm89")[0] == 1
    several = CliRunner().invoke(app, ["diff-plan", str(bundle), str(bundle)])
    assert "fp32 tensorrt-rtx:sm89, fp16 tensorrt-rtx:sm89" in str(several.exception)
    thrice = CliRunner().invoke(app, ["diff-plan", "a", "b", *both, "--precision", "bf16"])
    missing = CliRunner().invoke(app, ["diff-plan", str(bundle), str(tmp_path / "nope")]).exception
    assert isinstance(missing, UsageError) and f"{tmp_path / 'nope'}: no such" in str(missing)
    assert "--precision 3 times" in str(thrice.exception)
