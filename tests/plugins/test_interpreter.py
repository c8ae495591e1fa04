"""Triton's interpreter casts wrongly, and the correction makes every cast of the kernels right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")


def count_wrong(mode):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cast_vectors.py")), mode],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_correction_is_needed():
    """When a new Triton casts rightly by itself, this fails: drop convert_float then."""
    wrong = {cast for cast, (_, count) in count_wrong("as-is").items() if count}
    to_narrow = {"float32->bfloat16", "float32->float8_e4m3fn"}
    assert wrong == to_narrow | {"bfloat16->float32", "float8_e4m3fn->float32"}  # subnormals; NaN


def test_the_correction_is_complete():
    counts = count_wrong("corrected")
    assert sum(vectors for vectors, _ in counts.values()) > 3_000_000
    assert {cast: count for cast, (_, count) in counts.items() if count} == {}


def test_an_error_in_the_process_comes_back_and_it_lives(interpret):
    with pytest.raises(RuntimeError, match="no such operator"):
        interpret("Nothing", [torch.ones(2)], {})
    (y,) = interpret("SwiGLU", [torch.zeros(1, 4), torch.ones(1, 4)], {})
    assert y.tolist() == [[0.0] * 4]
