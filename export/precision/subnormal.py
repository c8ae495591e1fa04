"""What FP16 takes from numbers below its smallest normal one, 2^-14: there the distance of neighbours stays 2^-24.

lost = sum over |x| < 2^-14 of (x - fp16(x))^2  /  sum of x^2          the share of a tensor's energy

Single tiny numbers among others cost nothing of it; a tensor whose bulk is tiny loses much. BF16 has FP32's exponents:
what is subnormal there is subnormal in FP32.
"""

import math
from dataclasses import dataclass

import torch

NORMAL = 2.0**-14  # the smallest normal number
LOST = (
    2.0**-20
)  # energy; a relative error of 2^-10, twice the most that rounding takes from a normal number
SMALL = (
    2.0**-8
)  # of a value whose largest number is above, no more than LOST can be lost unless its bulk is far below
_LEAST = (
    2.0**-15
)  # root mean square from which on, with errors of 2^-25 at most, no more than LOST is lost
_AMPLE = 2.0**-11  # and from which on a sixteenth of that error


@dataclass(frozen=True, slots=True)
class Faint:
    """Sums over the numbers of a tensor: of x^2, of what FP16's subnormals take, and how many are not zero."""

    energy: float = 0.0
    taken: float = 0.0
    nonzero: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Faint":
        """Those of one tensor; what is not finite is left out."""
        numbers = tensor.double()
        numbers = torch.where(torch.isfinite(numbers), numbers, 0.0)
        tiny = numbers[numbers.abs() < NORMAL]
        taken = (tiny - tiny.half().double()).square().sum()
        return cls(float(numbers.square().sum()), float(taken), int(numbers.count_nonzero()))

    @classmethod
    def of_weight(cls, tensor: torch.Tensor) -> "Faint":
        """The same, with one look at the numbers of an ordinary weight, which loses nothing to speak of."""
        norm, nonzero = float(torch.linalg.vector_norm(tensor)), int(tensor.count_nonzero())
        if math.isfinite(norm) and norm >= _LEAST * math.sqrt(nonzero):
            return cls(norm**2, 0.0, nonzero)
        return cls.of(tensor)

    def __add__(self, other: "Faint") -> "Faint":
        return Faint(
            self.energy + other.energy, self.taken + other.taken, self.nonzero + other.nonzero
        )

    @property
    def lost(self) -> float:
        """The share of the energy that is lost."""
        return self.taken / self.energy if self.energy else 0.0

    @property
    def rms(self) -> float:
        """Root mean square of the numbers that are not zero."""
        return math.sqrt(self.energy / self.nonzero) if self.nonzero else 0.0

    @property
    def too_faint(self) -> bool:
        """Whether more is lost than rounding would take."""
        return self.lost > LOST

    def scaled(self, bits: int) -> "Faint | None":
        """Of the tensor times 2^bits; None where its numbers must be looked at anew to know what is lost."""
        grown = Faint(self.energy * 4.0**bits, 0.0, self.nonzero)
        return grown if grown.rms >= _LEAST or not grown.nonzero else None


def bits_to_hold(rms: float) -> tuple[int, int]:
    """By how many bits numbers of this size must grow to lose no more than LOST, and to lose next to nothing."""
    return tuple(max(0, math.ceil(math.log2(wanted / rms))) for wanted in (_LEAST, _AMPLE))  # type: ignore[return-value]


def room_to_shrink(rms: float) -> int:
    """By how many bits numbers of this size may shrink and still lose no more than LOST."""
    return max(0, math.floor(math.log2(rms / _LEAST))) if rms else 64
