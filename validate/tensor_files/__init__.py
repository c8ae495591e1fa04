"""Tensors in files: .npz, .safetensors, Polygraphy's JSON, folders of them, data-loader scripts.

    load_tensors(path) -> [{name: array}, ...]      one dictionary for each set of inputs or outputs
    save_tensors(path, sets)

Only numbers are read, and nothing in a data file can run: no pickle, every length checked first.
"""

from .files import FORMATS, Tensors, check_output, load_tensors, save_tensors
from .polygraphy_json import RunnerOutputs, dump_inputs, dump_run_results, load_run_results

__all__ = [
    "FORMATS",
    "RunnerOutputs",
    "Tensors",
    "check_output",
    "dump_inputs",
    "dump_run_results",
    "load_run_results",
    "load_tensors",
    "save_tensors",
]
