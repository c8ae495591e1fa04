"""Values from files: against a graph, against each other, and through Polygraphy's own writer."""

import numpy as np
import pytest
import torch
from polygraphy.comparator import IterationResult, RunResults

from blockforge.core.dtypes import DType
from blockforge.core.errors import ArtefactError, UnavailableError, UsageError
from blockforge.validate.divergence import DiffOptions, SavedSide, diff, open_source
from blockforge.validate.divergence.feeds import choose_feeds

from .faults import FAULTS


def values_of(side, *, exact):
    """Everything that a graph computes, and its seeded inputs."""
    feeds, _ = choose_feeds((side,), None, {}, 0)
    kept = {}
    side.run(feeds, kept.__setitem__, None, exact=exact)
    return feeds, {n: v.clone() for n, v in kept.items()}


def saved(path, tensors):
    np.savez(path, **{n: t.numpy() for n, t in tensors.items()})
    return open_source(str(path))


def test_saved_values_of_an_honest_run_are_equal_to_the_graph(clean, tmp_path):
    side = clean("llama")
    feeds, values = values_of(side, exact=False)
    found = diff(clean("llama"), saved(tmp_path / "run.npz", {**feeds, **values}))
    assert found.equal, found.first
    assert found.compared == found.values
    assert "inputs saved" in found.inputs


@pytest.mark.parametrize("name", ["swapped gate and up", "wrong scale", "one bad column"])
def test_a_fault_in_saved_values_is_found_by_the_reference_graph(name, clean, planted_in, tmp_path):
    """The graph's operator on the saved inputs says what the saved value should be."""
    fault = FAULTS[name]
    feeds, values = values_of(planted_in("llama", fault.edit), exact=False)
    found = diff(clean("llama"), saved(tmp_path / "run.npz", {**feeds, **values}))
    assert found.first.node == fault.node
    assert found.first.value in values


def test_saved_values_without_their_inputs_need_them(clean, tmp_path):
    feeds, values = values_of(clean("llama"), exact=False)
    side = saved(tmp_path / "run.npz", {"logits": values["logits"]})
    with pytest.raises(UsageError, match="--inputs"):
        diff(clean("llama"), side)
    assert diff(clean("llama"), side, DiffOptions(inputs=feeds)).equal


def test_two_files_show_the_first_value_whose_error_grows(clean, planted_in):
    fault = FAULTS["wrong scale"]
    _, good = values_of(clean("llama"), exact=True)
    _, bad = values_of(planted_in("llama", fault.edit), exact=False)
    _, honest = values_of(clean("llama"), exact=False)
    options = DiffOptions(dtype=DType.FP16)
    found = diff(SavedSide("good", good), SavedSide("bad", bad), options)
    assert found.first.value == "layers.0.self_attn/attention"
    assert found.first.cause.kind == "unexplained"
    assert diff(SavedSide("good", good), SavedSide("honest", honest), options).equal


def test_run_results_of_polygraphy_are_read(clean, tmp_path):
    feeds, values = values_of(clean("llama"), exact=False)
    logits = values["logits"].numpy()
    path = tmp_path / "outputs.json"
    RunResults([("trt", [IterationResult(outputs={"logits": logits})])]).save(str(path))
    options = DiffOptions(inputs=feeds)
    assert diff(clean("llama"), open_source(str(path)), options).equal
    wrong = RunResults([("trt", [IterationResult(outputs={"logits": logits * 1.1})])])
    wrong.save(str(path))
    found = diff(clean("llama"), open_source(str(path)), options)
    assert found.first.value == "logits"


def test_every_set_of_two_files_is_compared(clean, tmp_path):
    """A graph runs on one set of inputs, and the verdict says that further sets were left out."""
    feeds, values = values_of(clean("llama"), exact=False)
    logits = values["logits"].numpy()
    for name, second in (("a", logits), ("b", logits * 1.1), ("c", None)):
        iterations = [IterationResult(outputs={"logits": logits})]
        if second is not None:
            iterations.append(IterationResult(outputs={"logits": second}))
        RunResults([("trt", iterations)]).save(str(tmp_path / f"{name}.json"))
    a, b, c = (open_source(str(tmp_path / f"{name}.json")) for name in "abc")
    assert diff(a, a).equal
    assert diff(a, b).first.value == "logits of set 2"
    (finding,) = diff(a, c).findings
    assert str(finding).startswith("logits of set 2: missing output")
    found = diff(clean("llama"), b, DiffOptions(inputs=feeds))
    assert found.equal and "the first of its 2 sets" in found.notes[-1]


def test_what_cannot_be_opened_says_why(tmp_path):
    with pytest.raises(UnavailableError, match="GPU"):
        open_source("model.plan")
    with pytest.raises(UsageError, match="no such file"):
        open_source(str(tmp_path / "absent.onnx"))
    with pytest.raises(UsageError, match="no bundle"):
        open_source(str(tmp_path))
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"nothing")
    with pytest.raises(ArtefactError):
        open_source(str(broken))


def test_sides_that_share_nothing_are_refused(clean):
    strange = SavedSide("strange", {"input_ids": torch.zeros(2, 24).long(), "x": torch.ones(3)})
    with pytest.raises(UsageError, match="partner"):
        diff(clean("llama"), strange)
    with pytest.raises(UsageError, match="tolerance"):
        diff(clean("llama"), clean("llama"), DiffOptions(tolerance=0))
