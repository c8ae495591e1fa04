"""Saved outputs through `blockforge diff`: comparisons that tools get wrong in both directions."""

import json
import xml.etree.ElementTree as ElementTree

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.dtypes import DType
from blockforge.validate.divergence import DiffOptions, SavedSide, diff

RNG = np.random.default_rng(0)
LOGITS = (RNG.normal(size=(4, 16, 256)) * 5).astype("f4")
LOGITS[0, 0, :5] = 1e-7
NOISY = LOGITS * (1 + 1e-3 * RNG.normal(size=LOGITS.shape)) + 1e-3 * RNG.normal(size=LOGITS.shape)
NAN = np.full((4, 8), np.nan, "f4")
MASK = np.zeros((4, 8), "f4")
MASK[:, 4:], MASK[:, :2] = np.inf, -np.inf
LARGE = RNG.normal(size=(1000, 1000)).astype("f4")
SMALL = (RNG.normal(size=(4, 8)) * 1e-4).astype("f4")
IDS = np.array([3, 7])
TIED = np.array([[0, 1, 1, 5.0, 5.0001], [0.0] * 5], "f4")


def one_nan():
    changed = LARGE.copy()
    changed[5, 5] = np.nan
    return changed


def one_token():
    """One position's runner-up lifted 0.02 above its best."""
    changed = LOGITS.copy()
    row = changed[2, 3]
    second, first = np.argsort(row)[-2:]
    row[second] = row[first] + 0.02
    return changed


def other_mask():
    changed = MASK.copy()
    changed[1, 5] = -np.inf
    return changed


BITS = RNG.normal(size=(4, 8)).astype(ml_dtypes.bfloat16)
# what -> (reference, candidate, rule that is broken, None: equal)
CASES = {
    "fp16 noise": ({"y": LOGITS}, {"y": NOISY.astype("f4")}, None),
    "same infinities": ({"y": MASK}, {"y": MASK.copy()}, None),
    "NaN on both sides": ({"y": NAN}, {"y": NAN.copy()}, "truth not finite"),
    "one NaN": ({"y": LARGE}, {"y": one_nan()}, "not finite"),
    "all zero": ({"y": SMALL}, {"y": SMALL * 0}, "all zero"),
    "one token": ({"y": LOGITS}, {"y": one_token()}, "diverged"),
    "tied ids": ({"y": IDS, "logits": TIED}, {"y": np.array([4, 7]), "logits": TIED}, None),
    "ids off by one": ({"y": IDS}, {"y": np.array([4, 7])}, "integers"),
    "broadcast": ({"y": np.ones((4, 1), "f4")}, {"y": np.ones((4, 8), "f4")}, "shape"),
    "missing output": ({"y": LOGITS, "z": LOGITS}, {"y": LOGITS}, "missing output"),
    "empty": ({"y": np.zeros((0, 8), "f4")}, {"y": np.zeros((0, 8), "f4")}, "empty"),
    "bf16 as bits": ({"y": BITS.astype("f4")}, {"y": BITS.view(np.uint16)}, "dtype"),
    # of the same kinds
    "extra output": ({"y": LOGITS}, {"y": LOGITS, "z": LOGITS}, "extra output"),
    "other infinities": ({"y": MASK}, {"y": other_mask()}, "not finite"),
    "ids that are no tie": (
        {"y": IDS, "logits": TIED},
        {"y": np.array([2, 7]), "logits": TIED},
        "integers",
    ),
    "ids tied in fp16": (
        {"y": IDS, "logits": TIED - [0, 0, 0, 0, 0.01]},
        {"y": np.array([4, 7]), "logits": TIED - [0, 0, 0, 0, 0.01]},
        None,
    ),
    "ids of equal logits that are not the largest": (
        {"y": np.array([1, 7]), "logits": TIED},
        {"y": np.array([2, 7]), "logits": TIED},
        "integers",
    ),
    "ids far off beside right floats": (
        {"x": LOGITS, "ids": IDS},
        {"x": LOGITS, "ids": np.array([999, -5])},
        "integers",
    ),
    "truth values": ({"x": LOGITS, "z": SMALL > 0}, {"x": LOGITS, "z": SMALL < 0}, "integers"),
    "floats as integers": (
        {"x": LOGITS, "z": SMALL},
        {"x": LOGITS, "z": SMALL.astype("i4")},
        "dtype",
    ),
    "a wider integer": ({"y": IDS}, {"y": IDS.astype("i4")}, "dtype"),
    "bits on both sides": ({"y": BITS.view("u2")}, {"y": BITS.view("u2").copy()}, None),
    "other bits": ({"y": BITS.view("u2")}, {"y": BITS.view("u2") + 1}, "integers"),
    "scalars called logits and ids": (
        {"y": np.int64(3), "logits": np.float32(2)},
        {"y": np.int64(4), "logits": np.float32(2)},
        "integers",
    ),
    "a scalar": ({"y": np.float32(2.0)}, {"y": np.float32(2.5)}, "diverged"),
    "a scalar that is right": ({"y": np.float32(2.0)}, {"y": np.float32(2.0)}, None),
}
NOISE = {"fp16 noise", "ids tied in fp16"}  # right in 16 bits, which float32 files do not tell


def run(*words):
    return CliRunner().invoke(app, ["diff", *map(str, words)])


@pytest.fixture
def files(tmp_path):
    def write(reference, candidate):
        np.savez(tmp_path / "a.npz", **reference)
        np.savez(tmp_path / "b.npz", **candidate)
        return tmp_path / "a.npz", tmp_path / "b.npz"

    return write


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [(), ("--dtype", "fp16")], ids=["as saved", "fp16"])
def test_verdicts_on_saved_outputs(files, fits_schema, name, dtype):
    reference, candidate, rule = CASES[name]
    if name in NOISE and not dtype:
        rule = "integers" if name == "ids tied in fp16" else "diverged"
    done = run(*files(reference, candidate), *dtype, "--json")
    assert done.exit_code == (0 if rule is None else 1), done.output
    body = json.loads(done.stdout)
    fits_schema("diff", body)
    assert body["equal"] == (rule is None)
    if rule == "diverged":
        assert body["first"] is not None and not body["findings"]
    else:
        assert [f["rule"] for f in body["findings"]] == ([] if rule is None else [rule])


@pytest.mark.parametrize("name", ["same infinities", "missing output", "ids off by one"])
def test_text_and_junit_say_what_is_broken(files, tmp_path, name):
    reference, candidate, rule = CASES[name]
    junit = tmp_path / "junit.xml"
    done = run(*files(reference, candidate), "--junit", junit)
    suite = ElementTree.parse(junit).getroot()[0]
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    if rule is None:
        assert "equal within rounding" in done.stdout and failed == []
        return
    (output,) = {*reference} - {*candidate} or {"y"}
    assert "not equal" in done.stdout and f"{output}: {rule}: " in done.stdout
    assert failed == [f"{output}: {rule}"] and suite.get("failures") == "1"


def test_the_yardstick_is_the_saved_type_and_dtype_overrides_it(tmp_path):
    def equal(one, other, dtype=None):
        sides = (SavedSide(n, {"y": torch.from_numpy(v)}) for n, v in (("a", one), ("b", other)))
        return diff(*sides, DiffOptions(dtype=dtype)).equal

    half = NOISY.astype("f2")
    assert equal(LOGITS, half) and equal(half, LOGITS)
    assert not equal(LOGITS, half.astype("f4"))
    assert not equal(LOGITS, half, DType.FP32)  # as asked, though fp16 cannot hold it
    assert equal(LOGITS, half.astype("f4"), DType.FP16)
    assert not equal(LOGITS.astype("f2"), one_token().astype("f2"))  # one element among 16,384
    paths = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for path, array in zip(paths, (LOGITS, NOISY), strict=True):
        save_file({"y": torch.from_numpy(array.astype("f4")).bfloat16()}, path)
    assert run(*paths).exit_code == 0
    assert run(*paths, "--dtype", "fp32").exit_code == 1


def test_errors_that_grow_from_array_to_array_stay_bounded():
    """Each may be eight times the one before, but not without end."""
    sizes = (0.02, 0.15, 1.1, 8.0)
    good = {f"y{i}": torch.from_numpy(LOGITS) for i in range(4)}
    noise = torch.from_numpy(RNG.normal(size=LOGITS.shape).astype("f4"))
    bad = {n: v + s * 5 * noise for (n, v), s in zip(good.items(), sizes, strict=True)}
    found = diff(SavedSide("a", good), SavedSide("b", bad), DiffOptions(dtype=DType.FP16))
    assert found.first.value == "y2"


def test_tolerance_widens_what_saved_values_may_be_off(files):
    paths = files({"y": LOGITS}, {"y": LOGITS * np.float32(1 + 1e-4)})
    assert run(*paths).exit_code == 1
    assert run(*paths, "--tolerance", "100").exit_code == 0


def test_files_that_share_no_name_are_a_wrong_argument(files):
    done = run(*files({"y": LOGITS}, {"z": LOGITS}))
    assert "no value of the same name" in str(done.exception)


def test_complex_numbers_are_compared_as_pairs():
    def sides(one, other):
        return SavedSide("a", {"y": torch.tensor(one)}), SavedSide("b", {"y": torch.tensor(other)})

    assert diff(*sides([1 + 1j], [1 + 1j])).equal
    assert not diff(*sides([1 + 1j], [1 + 2j])).equal
