"""golden.safetensors: what is read equals the truth, within the budget; a damaged file is one clear error."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockforge.core.dtypes import DType
from blockforge.core.errors import ArtefactError
from blockforge.validate.golden import read_golden, write_golden


@pytest.fixture(scope="module")
def truth(tiny):
    found = tiny.truth()
    found.floor(DType.FP16, DType.FP32)
    return found


def test_round_trip(tmp_path, truth):
    path = tmp_path / "golden.safetensors"
    write_golden(path, truth)
    golden = read_golden(path)
    assert [c.name for c in golden] == [c.name for c in truth.cases]
    for case, original in zip(golden, truth.cases, strict=True):
        expected = truth.results[case.name]["logits"]
        assert torch.equal(case.inputs["input_ids"], original.feeds["input_ids"])
        assert case.outputs["logits"].rows.dtype == torch.float64
        assert torch.equal(case.outputs["logits"].pick(expected), case.outputs["logits"].rows)
        assert len(case.outputs["logits"].rows) == expected.shape[0] * expected.shape[1]
        floor = truth.floor(DType.FP16, DType.FP32).spreads[case.name]["logits"]
        assert case.floors == {"fp16": {"logits": floor.rms}}
        assert case.text is original.text


@pytest.mark.parametrize("budget", [1, 4000, 20000])
def test_rows_keep_to_the_budget_and_span_the_output(tmp_path, truth, budget):
    path = tmp_path / "golden.safetensors"
    write_golden(path, truth, budget=budget)
    rows = [c.outputs["logits"] for c in read_golden(path)]
    row_bytes = 97 * 8
    assert sum(len(r.rows) for r in rows) * row_bytes <= max(budget, len(rows) * row_bytes)
    for case, kept in zip(read_golden(path), rows, strict=True):
        expected = truth.results[case.name]["logits"]
        assert torch.equal(kept.rows, kept.pick(expected))
        assert kept.at[0].tolist() == [0, 0]
        if len(kept.rows) > 1:
            assert kept.at[-1].tolist() == [expected.shape[0] - 1, expected.shape[1] - 1]


def test_the_file_is_plain_safetensors(tmp_path, truth):
    path = tmp_path / "golden.safetensors"
    write_golden(path, truth)
    assert "seeded odd/input/input_ids" in load_file(path)


def test_files_that_do_not_fit(tmp_path, truth):
    whole = tmp_path / "golden.safetensors"
    write_golden(whole, truth)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole.read_bytes()[:-100])
    other = tmp_path / "other.safetensors"
    save_file({"x": torch.ones(2)}, str(other))
    noise = tmp_path / "noise.safetensors"
    noise.write_bytes(b"not a header")
    lacking = tmp_path / "lacking.safetensors"
    tensors = load_file(whole)
    del tensors["seeded odd/at/logits"]
    import safetensors

    with safetensors.safe_open(str(whole), framework="pt") as file:
        save_file(tensors, str(lacking), metadata=file.metadata())
    for path in (cut, other, noise, lacking, tmp_path / "absent.safetensors"):
        with pytest.raises(ArtefactError, match="golden file"):
            read_golden(path)
