"""What an ONNX file may be written to: never over a file that is still to be read.

source.onnx, its external data, other inputs | OUT.onnx, OUT.onnx.data
"""

from collections.abc import Iterable
from pathlib import Path

from ..core.errors import UsageError
from .io import data_path, read_proto
from .stored_tensors import data_locations


def require_output(source: str | Path, output: str | Path, others: Iterable[Path] = ()) -> None:
    """require_unread, and UsageError where `output` lies in a folder that does not exist."""
    require_unread(source, output, others)
    if not Path(output).absolute().parent.is_dir():
        raise UsageError(
            f"write {output}",
            found="cannot write there: No such file or directory",
            fix="Name a folder you may write, with enough room",
        )


def require_unread(source: str | Path, output: str | Path, others: Iterable[Path] = ()) -> None:
    """UsageError where `output`, or the data file beside it, is a file that is read, also by a link of either kind.

    Read are the graph at `source`, the files that hold its weights, and `others`. Raises ArtefactError for a source
    whose weights cannot be told because it is no ONNX file.
    """
    source, output = Path(source), Path(output)
    written = [path for path in (output, data_path(output)) if path.exists()]
    if not written or not source.is_file():
        return
    _refuse(output, written, source, "the graph that is read")
    for other in others:
        _refuse(output, written, other, "another input")
    folder = source.absolute().parent
    for location in sorted(data_locations(read_proto(source))):
        _refuse(output, written, folder / location, f"the weights of {source.name}")


def _refuse(output: Path, written: Iterable[Path], read: Path, what: str) -> None:
    for path in written:
        if read.exists() and path.samefile(read):
            place = "it" if path == output else f"its data file {path.name}"
            raise UsageError(
                f"write {output}", found=f"{place} is {what}", fix="Name another file with -o"
            )
