"""The error of a configuration whose parts contradict each other."""

from collections.abc import Mapping

from ..core.errors import UsageError


def contradiction(found: str, fix: str) -> UsageError:
    """A UsageError that says what was found and what would be right."""
    return UsageError("model configuration", found=found, fix=fix)


def check_sizes(sizes: Mapping[str, tuple[float, float]]) -> None:
    """sizes: name -> (value, largest). Raise UsageError naming the first that is not in (0, largest]; NaN is not."""
    for name, (size, largest) in sizes.items():
        if not 0 < size <= largest:
            raise contradiction(
                f"{name} is {size}", f"It must be greater than 0 and at most {largest:g}"
            )
