""".npy and .npz, checked: the header must say numbers, and as many as there are bytes."""

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...core.errors import ArtefactError, UsageError
from .numbers import FOREIGN, checked, unique

MAX_HEADER = 10_000  # characters; numpy's own limit


def array_from_npy(data: bytes, asked: str) -> np.ndarray:
    """The array in the bytes of one .npy file; ArtefactError says what is wrong with them."""
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(stream, max_header_size=MAX_HEADER)
    except KeyError:
        raise ArtefactError(asked, found="an .npy version that is not known") from None
    except (ValueError, SyntaxError, TypeError, EOFError) as error:
        raise ArtefactError(asked, found=f"no .npy header ({error})") from None
    checked(np.empty(0, dtype), asked)  # the type alone
    rest, needs = len(data) - stream.tell(), math.prod(shape) * dtype.itemsize
    if rest != needs or min(shape, default=0) < 0:
        found = f"{rest} bytes, but {dtype} of shape {shape} takes {needs}"
        raise ArtefactError(asked, found=found, fix="The file was cut short: save it again")
    flat = np.frombuffer(data, dtype, count=math.prod(shape), offset=stream.tell())
    return checked(flat.reshape(shape, order="F" if fortran else "C"), asked)


def npy_from_array(array: np.ndarray) -> bytes:
    """The bytes of one .npy file; UsageError for a type that numpy cannot name in a file."""
    if array.dtype in FOREIGN:
        raise UsageError(
            f"save {array.dtype} as numpy does",
            found="numpy would write raw bytes and lose the type",
            fix="Save as .safetensors, or cast to float32 first",
        )
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array, order="C"), allow_pickle=False)
    return stream.getvalue()


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """Every array of the archive; ArtefactError for a damaged one."""
    asked = f"tensors in {path}"
    try:
        with zipfile.ZipFile(path) as archive:
            strangers = [m.filename for m in archive.infolist() if not m.filename.endswith(".npy")]
            if strangers:
                raise ArtefactError(asked, found=f"{strangers[0]!r} in it is no array")
            members = [
                (member.filename.removesuffix(".npy"), archive.read(member))
                for member in archive.infolist()
            ]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        found = f"it cannot be read as an .npz archive ({error})"
        raise ArtefactError(asked, found=found, fix="Save it again") from None
    return {
        name: array_from_npy(data, f"{name!r} in {path}")
        for name, data in unique(members, asked).items()
    }


def npz_bytes(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The archive that load_npz, and numpy.load, read."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in tensors.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy_from_array(array))
    return stream.getvalue()
