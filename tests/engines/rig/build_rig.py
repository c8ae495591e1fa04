"""A `tensorrt` that imports without NVIDIA's libraries: the real Python bindings over TensorRT-RTX's library.

    build_rig(folder) -> folder/tensorrt, folder/tensorrt_libs: put the folder on PYTHONPATH

What runs is the real `tensorrt` API: every class, member and argument of it. What plans the kernels is TensorRT-RTX, so
the engines are no evidence of anything else. Both versions are pinned: the two products' classes must be laid out alike.
"""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

PINNED = {"tensorrt-cu13-bindings": "11.4.0.106", "tensorrt-rtx": "1.7.1.116"}
LIBRARIES = {  # what the bindings link against -> which part of forward.c it is
    "libnvinfer.so.11": "FOR_NVINFER",
    "libnvonnxparser.so.11": "FOR_PARSER",
    "libnvinfer_plugin.so.11": "FOR_PLUGIN",
}
LOADER = """
import ctypes, pathlib
for name in {names!r}:
    ctypes.CDLL(str(pathlib.Path(__file__).parent / name), ctypes.RTLD_GLOBAL)
"""
MODULE = """
import tensorrt_bindings
from tensorrt_bindings import *
__version__ = tensorrt_bindings.__version__
"""


def obstacle() -> str | None:
    """Why the rig does not fit here; None where it does."""
    if not sys.platform.startswith("linux"):
        return "the forwarding libraries are written for Linux"
    if shutil.which("cc") is None:
        return "no C compiler (cc)"
    for distribution, version in PINNED.items():
        try:
            found = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return (
                f"{distribution} is not installed (pip install --no-deps {distribution}=={version})"
            )
        if found != version:
            return f"{distribution} {found} is installed, the rig was made for {version}"
    if importlib.util.find_spec("tensorrt") is not None:
        return "the real tensorrt is installed: its own tests apply"
    return None


def build_rig(folder: Path) -> Path:
    """Compile the stand-ins into `folder`; returns it."""
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    assert spec and spec.submodule_search_locations
    real = Path(spec.submodule_search_locations[0])
    package = folder / "tensorrt_libs"
    package.mkdir()
    for name, part in LIBRARIES.items():
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-D{part}"]
        command += [f'-DNVINFER="{real}/libtensorrt_rtx.so.1"']
        command += [f'-DPARSER="{real}/libtensorrt_onnxparser_rtx.so.1"']
        command += [f"-Wl,-soname,{name}", "-o", str(package / name)]
        source = Path(__file__).with_name("forward.c")
        subprocess.run([*command, str(source), "-ldl"], check=True)
    (package / "__init__.py").write_text(LOADER.format(names=list(LIBRARIES)))
    (folder / "tensorrt").mkdir()
    (folder / "tensorrt" / "__init__.py").write_text(MODULE)
    return folder
