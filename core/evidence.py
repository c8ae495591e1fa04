"""What a verdict shows beyond its limits: single elements, ulps, seeds, the first other token, values that became zero."""

from .records import DTypeName, Record


class ElementRecord(Record):
    """One element of an output that lies far from the truth; ulps None where they mean nothing."""

    case: str
    index: tuple[int, ...]
    actual: float
    expected: float
    error: float
    ulps: float | None


class ElementsRecord(Record):
    """How the errors of one output's elements are spread, all cases together.

    dtype: whose units in the last place (ulps) count. ulps: upper edge -> elements, "more" beyond the last; floor_ulps:
    the same of PyTorch in that type, empty where it is not finite in it. Not counted: elements that are not
    finite, and those whose truth is smaller than the type's normal numbers. worst: the largest errors first.
    """

    output: str
    dtype: DTypeName
    ulps: dict[str, int]
    floor_ulps: dict[str, int]
    worst: tuple[ElementRecord, ...]


class SeedsRecord(Record):
    """Error over floor of one output on seeded inputs of one size, all seeds together; the interval holds the middle 95 %
    of a bootstrap over the seeds."""

    output: str
    seeds: int
    ratio: float
    interval: tuple[float, float]


class GreedyRecord(Record):
    """The first position whose greedy token is not the reference's, both given the reference's text up to there.

    position: batch and sequence. margin: how far the reference puts the other token's logit below its own's.
    """

    case: str
    position: tuple[int, ...]
    expected: int
    actual: int
    margin: float


class UnderflowRecord(Record):
    """A value with elements that rounding to its dtype made zero: count of elements, over the cases that lost some."""

    value: str
    node: str
    count: int
    elements: int
