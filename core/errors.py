"""One family of errors: what was asked, what was found, what would work, and the exit code it ends in."""

from collections.abc import Callable
from enum import IntEnum


class ExitCode(IntEnum):
    """What the command line returns."""

    OK = 0
    GATE = 1  # numbers, latency or dtypes outside the recipe's limits
    USAGE = 2  # a wrong argument, recipe or input file
    UNAVAILABLE = 3  # something this machine lacks: a GPU, TensorRT
    BUILD = 4  # the engine builder refused or died
    ARTEFACT = 5  # a file that does not fit: corrupt, another version, another GPU


class BlockforgeError(Exception):
    """Base of every error that a user can act on.

    asked: what the user wanted; found: what stood in the way; fix: what would work.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, asked: str, *, found: str, fix: str = "") -> None:
        self.asked, self.found, self.fix = asked, found, fix
        super().__init__(f"{asked}: {found}" + (f". {fix}" if fix else ""))

    def __reduce__(self) -> tuple[Callable[..., "BlockforgeError"], tuple[object, ...]]:
        return _rebuild, (type(self), self.asked, self.found, self.fix)


def _rebuild(kind: type[BlockforgeError], asked: str, found: str, fix: str) -> BlockforgeError:
    return kind(asked, found=found, fix=fix)


class UsageError(BlockforgeError, ValueError):
    """The recipe, an argument or an input file is wrong."""

    exit_code = ExitCode.USAGE


class GateError(BlockforgeError):
    """A built artefact misses a limit that the recipe sets."""

    exit_code = ExitCode.GATE


class UnavailableError(BlockforgeError):
    """This machine lacks what the work needs."""

    exit_code = ExitCode.UNAVAILABLE


class BuildError(BlockforgeError):
    """The engine builder refused the graph or died."""

    exit_code = ExitCode.BUILD


class ArtefactError(BlockforgeError):
    """A stored file is damaged or made for something else."""

    exit_code = ExitCode.ARTEFACT
