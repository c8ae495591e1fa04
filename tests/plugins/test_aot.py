"""Ahead-of-time compilation without a GPU: portable PTX, the right parameters, wide accesses, no spills."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from plugin_samples import NAMES

from blockforge.core.dtypes import DType
from blockforge.core.errors import BuildError, UsageError
from blockforge.plugins.aot import (
    PTX_VERSION,
    architecture_for,
    compile_kernel,
    supported_architectures,
)
from blockforge.plugins.cubin import resources
from blockforge.plugins.launch import ARCHITECTURES
from blockforge.plugins.listing import example_call, plugin_ptx
from blockforge.plugins.ptx import Access, accesses, finish, parameters
from blockforge.plugins.registers import REGISTERS
from blockforge.plugins.registry import plugin_named

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
PAIRS = [(n, a) for n in NAMES for a in supported_architectures(plugin_named(n))]
SOME = [
    (n, ARCHITECTURES[1:][i % 4]) for i, n in enumerate(NAMES)
]  # every operator, every architecture


def check_ptx(built, arch, plugin):
    """What an engine carries: target, version, parameters, no path, FP8 only by the saturating conversion."""
    ptx = built.ptx
    assert f".version {PTX_VERSION // 10}.{PTX_VERSION % 10}\n.target sm_{arch}\n" in ptx
    assert len(parameters(ptx)) == len(plugin.table.tensors) + 1
    assert not re.search(r"/|\\|\.loc|\.file|\.section|\.py", ptx)
    assert " fma." not in ptx, "sums are rounded step by step, as the interpreter does"
    conversions = set(re.findall(r"cvt\.\S*e4m3x2\.f32", ptx))
    assert conversions == ({"cvt.rn.satfinite.e4m3x2.f32"} if plugin.table.quantises else set())


@pytest.mark.parametrize(("name", "arch"), SOME)
def test_compiles_and_fits(name, arch):
    plugin, built = plugin_named(name), plugin_ptx(name, arch=arch)
    check_ptx(built, arch, plugin)
    found = resources(built.ptx, arch)
    assert (found.spilled, found.stack) == (0, 0)
    assert found.registers == REGISTERS[name][arch], "run `python -m blockforge.plugins.measure`"


CALLS = [(n, a, DType.FP16, 4096) for n, a in PAIRS] + [
    (n, a, dtype, row)
    for n, a in PAIRS
    if a in (89, 120)  # each assembles with another ptxas
    for dtype, row in ((DType.FP16, 16384), (DType.FP32, 16384), (DType.BF16, 65536))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arch", "dtype", "row"), CALLS)
def test_nothing_spills_anywhere(name, arch, dtype, row):
    plugin, built = plugin_named(name), plugin_ptx(name, arch=arch, dtype=dtype, row=row)
    check_ptx(built, arch, plugin)
    found = resources(built.ptx, arch)
    assert (found.spilled, found.stack) == (0, 0)
    if (dtype, row) == (DType.FP16, 4096):
        assert found.registers == REGISTERS[name][arch], (
            "run `python -m blockforge.plugins.measure`"
        )
    check_width(built, plugin)


def check_width(built, plugin):
    """Every access to an activation moves 128 bits; only scales, angles and short vectors may be narrower."""
    narrow = Counter({a: n for a, n in accesses(built.ptx).items() if a.bits < 128})
    assert not [a for a in narrow if a.op == "st"], "outputs are stored in 128-bit pieces"
    if plugin.name == "QKNormRope":
        assert sum(narrow.values()) <= 6  # two halves of two weights, cos and sin: once per token
    else:
        assert sum(narrow.values()) == (1 if plugin.table.quantises else 0)  # the scale


@pytest.mark.parametrize("name", NAMES)
def test_aligned_rows_move_128_bits(name):
    plugin = plugin_named(name)
    check_width(plugin_ptx(name, arch=90), plugin)


def test_odd_rows_cannot():
    """The near miss: a row of 4097 two-byte elements starts anywhere, so nothing is 128 bits wide."""
    found = accesses(plugin_ptx("AddRMSNorm", row=4097).ptx)
    assert Access("ld", 128) not in found
    assert Access("st", 16) in found


def test_ptx_is_portable_upwards():
    """The promise of aot.py: PTX for sm_80 assembles for every later architecture."""
    built = plugin_ptx("AddLayerNorm", arch=80)
    for arch in ARCHITECTURES:
        assert resources(built.ptx, arch).spilled == 0
    fp8 = plugin_ptx("SwiGLUQuantize", arch=89)
    for arch in ARCHITECTURES[1:]:
        assert resources(fp8.ptx, arch).spilled == 0
    with pytest.raises(BuildError, match="ptxas"):
        resources(fp8.ptx, 80)


def test_the_bytes_are_the_same_in_another_place(tmp_path):
    """Two processes, two folders that hold the package, two caches, two homes: one result."""
    results = []
    for place in ("one", "two/deeper"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "blockforge").symlink_to(ROOT)
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "HOME": str(folder),
            "TRITON_CACHE_DIR": str(folder / "cache"),
            "TRITON_DISABLE_LINE_INFO": "1" if place == "one" else "0",
        }
        script = str(Path(__file__).with_name("compile_one.py"))
        done = subprocess.run(
            [sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        results.append(done.stdout.split())
    assert len(results[0]) == 3
    assert results[0] == results[1]


ENTRY = """.version 8.7
.target sm_90a
.visible .entry k(
\t.param .u64 .ptr .global .align 1 k_param_0,
\t.param .u32 k_param_1,
\t.param .u64 .ptr .global .align 1 k_param_2,
\t.param .u64 .ptr .global .align 1 k_param_3
)
{
\tld.param.b64 %rd1, [k_param_0]; // a comment
\tret;
}
"""


def test_scratch_parameters_are_removed():
    text = finish(ENTRY, 90, 2)
    assert parameters(text) == ("u64", "u32")
    assert ".target sm_90\n" in text
    assert "comment" not in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[k_param_0]", "[k_param_3]", "scratch memory is used"),
        ("[k_param_0]", "[k_param_2+8]", "scratch memory is used"),
        (",\n\t.param .u64 .ptr .global .align 1 k_param_3", "", "3 parameters where 2 and 2"),
        ("\tret;", '\t.file 1 "/home/me/kernel.py"\n\tret;', "debug information"),
        ("\tret;", "\t.loc 1 5 9\n\tret;", "debug information"),
        ("sm_90a", "sm_100a", "no target sm_90"),
        (".align 1 k_param_3", ".align 1 k_param_30", ""),
        (".u64 .ptr .global .align 1 k_param_3", ".u32 k_param_3", "no pointer"),
    ],
)
def test_ptx_near_misses(old, new, words):
    assert old in ENTRY
    changed = ENTRY.replace(old, new)
    if not words:
        assert finish(changed, 90, 2)
        return
    with pytest.raises(BuildError, match=words):
        finish(changed, 90, 2)


def test_accesses_are_counted():
    text = """
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    ld.global.L1::evict_last.v2.b64 {%rd1, %rd2}, [%rd3];
    st.global.b16 [ %rd8 + 0 ], { %rs1 };
    // ld.global.b8 in a comment
    ld.shared.b32 %r1, [%r2];
    """.replace(".L1::evict_last", "")
    assert accesses(text) == {Access("ld", 128): 2, Access("st", 16): 1}


def test_fp8_needs_sm89():
    with pytest.raises(UsageError, match=r"no kernel. Known: sm_89, sm_90, sm_100, sm_120"):
        plugin_ptx("RMSNormQuantize", arch=80)


def test_a_gpu_between_architectures_gets_the_older_kernel():
    plain, fp8 = plugin_named("RMSNorm"), plugin_named("RMSNormQuantize")
    assert [architecture_for(plain, gpu) for gpu in (80, 86, 89, 103, 121)] == [
        80,
        80,
        89,
        100,
        120,
    ]
    assert plugin_ptx("RMSNorm", arch=86).arch == 80
    for plugin, gpu in ((plain, 75), (fp8, 86)):
        with pytest.raises(UsageError, match=f"for sm_{gpu}: no kernel"):
            architecture_for(plugin, gpu)


def test_a_misspelt_option_is_refused(monkeypatch):
    """Triton itself ignores one without a word."""
    from blockforge.plugins import aot

    with pytest.raises(AssertionError, match="no option"), aot._pinned({"num_warp": 4}):
        pass


def test_other_attributes_are_another_kernel():
    plugin = plugin_named("RMSNorm")
    dtypes, sizes, attributes = example_call(plugin)
    texts = {
        compile_kernel(plugin, dtypes, sizes, {**attributes, "epsilon": e}, 90).ptx
        for e in (1e-5, 1e-6)
    }
    assert len(texts) == 2
