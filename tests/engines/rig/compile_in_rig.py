"""Compile for `tensorrt:sm89` over the rig, in a process that believes it has such a GPU.

stdin: {"model": path, "folder": path, "cases": {name: {options, more_profiles}}} -> stdout: {name: outcome}
"""

import json
import logging
import sys
from pathlib import Path
from unittest import mock

from blockforge.core.errors import BlockforgeError
from blockforge.core.shapes import ShapeRange
from blockforge.engines import compile as compiling
from blockforge.engines import outlook, requirements
from blockforge.engines.gpu import Gpu
from blockforge.engines.options import BuildOptions
from blockforge.engines.target import Target
from blockforge.engines.tensorrt_api import load_api


def outcome(model, folder, case):
    """What compiling gave: the record, or the error; with the steps and the log on the way."""
    options = dict(case.get("options", {}))
    if "timing_cache" in options:
        options["timing_cache"] = Path(options["timing_cache"])
    if "tactic_sources" in options:
        options["tactic_sources"] = tuple(options["tactic_sources"])
    first, *more = (
        {name: ShapeRange(*map(tuple, sizes)) for name, sizes in profile.items()}
        for profile in case["profiles"]
    )
    request = compiling.CompileRequest(
        model=Path(case.get("model", model)),
        target=Target.parse("tensorrt:sm89"),
        profile=first,
        folder=folder,
        options=BuildOptions(**options),
        more_profiles=tuple(more),
        cache=Path(case["cache"]) if "cache" in case else None,
    )
    steps, heard = [], Heard()
    logging.getLogger("blockforge").addHandler(heard)
    try:
        record = compiling.compile_engine(request, steps.append)
    except BlockforgeError as error:
        return {"error": type(error).__name__, "text": str(error), "log": heard.lines}
    finally:
        logging.getLogger("blockforge").removeHandler(heard)
    details = sorted({step.detail for step in steps})
    return {"record": record.model_dump(mode="json"), "steps": details, "log": heard.lines}


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def main():
    asked = json.load(sys.stdin)
    logging.getLogger("blockforge").setLevel(logging.DEBUG)
    gpu = (Gpu("NVIDIA L4", "sm89", 24 * 2**30),)
    out = {"features": sorted(load_api("tensorrt").features)}
    with (
        mock.patch.object(requirements, "gpus", lambda: gpu),
        mock.patch.object(outlook, "gpus", lambda: gpu),
    ):
        for name, case in asked["cases"].items():
            folder = Path(asked["folder"]) / name
            out[name] = outcome(asked["model"], folder, case)
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
