"""Ask the installed TensorRT-RTX which operators its ONNX parser knows, and write engines/preflight/parser_operators.py.

    python benchmarks/parser_operators.py [--check]

Asked are the names of all operators of ONNX and ONNX Runtime, in every version, and every name that occurs in the parser's
own library. The parser goes by names and overlooks domains. --check writes nothing and exits 1 where the file differs.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import onnx

from blockforge.engines.tensorrt_api import load_api

FILE = Path(__file__).resolve().parents[1] / "engines" / "preflight" / "parser_operators.py"
WORD = re.compile(rb"[A-Za-z][A-Za-z0-9_]{2,63}")
NO_OPERATORS = {
    "FallbackPluginImporter",
    "LocalFunctionImporter",
}  # the parser's own, by which it falls back


def library_words() -> set[str]:
    """Every identifier in the parser's library, and every end of one: linkers store a name inside a longer one."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split()[-1] for line in maps if "onnxparser" in line}
    words = {w.decode() for file in files for w in WORD.findall(Path(file).read_bytes())}
    return {word[start:] for word in words for start in range(len(word) - 1)}


def candidates() -> set[str]:
    """The names that are asked."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    published = {s.name for s in onnx.defs.get_all_schemas_with_history()}
    return published | {s.name for s in get_all_operator_schema()} | library_words()


def known(trt: Any) -> list[str]:
    """The names that the parser says it supports, and those of plugins that are registered."""
    logger = trt.Logger(trt.Logger.ERROR)
    network = trt.Builder(logger).create_network(0)
    parser = trt.OnnxParser(network, logger)
    plugins = {creator.name for creator in trt.get_plugin_registry().all_creators_recursive}
    asked = {name for name in candidates() - NO_OPERATORS if parser.supports_operator(name)}
    return sorted(asked | plugins)


def text(version: str, names: list[str]) -> str:
    """The file's content."""
    lines = "\n".join(f'        "{name}",' for name in names)
    return (
        '"""The operators that TensorRT-RTX\'s ONNX parser knows, by name: it overlooks domains.\n\n'
        "Written by `python benchmarks/parser_operators.py`, which asks the parser; the test of the table asks it again.\n"
        f'"""\n\nVERSION = "{version}"\n\nKNOWN = frozenset(\n    [\n{lines}\n    ]\n)\n'
    )


def main() -> int:
    """Write or check the file."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true")
    check = options.parse_args().check
    api = load_api("tensorrt-rtx")
    names = known(api.trt)
    content = text(".".join(api.trt.__version__.split(".")[:3]), names)
    if not check:
        FILE.write_text(content)
    print(f"{len(names)} operators")
    return int(FILE.read_text() != content)


if __name__ == "__main__":
    sys.exit(main())
