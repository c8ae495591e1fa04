"""Inputs to judge with, from a signature and a profile: the shipped text, and seeded numbers at several sizes.

    signature + profile + seed (+ tokens of a text) -> Case, Case, ...

The same seed gives the same numbers in every process. Float inputs lie on a grid that every 16-bit
type holds exactly, so no runner loses anything before the first operator.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import torch
from tokenizers import Tokenizer

from ..core.dtypes import DType, dtype_from_name
from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from ..core.shapes import Profile
from ..model.checkpoints import Checkpoint
from ..model.hidden_states import block_inputs
from ..model.signature import draw_whole_numbers, signature

GRID = 32  # normal values become n/32 with |n| < 256: eight bits, exact in bf16, fp16 and wider
LARGEST = 255
LARGEST_COMMON = 65280.0  # the largest number that bf16 and fp16 both have
ODD = {"batch": 2, "sequence": 17}  # sizes that no tile divides


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One set of inputs. text: the ids are consecutive tokens of a text, so perplexity means something.

    repeats: one of the cases that differ in their seed alone.
    """

    name: str
    feeds: Mapping[str, torch.Tensor]
    text: bool = False
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class InputPlan:
    """How much to judge with: seed of the random inputs, tokens of the text, tokens in one window of it.

    seeds: how many random inputs at opt sizes, counted up from seed.
    """

    seed: int = 0
    text_tokens: int = 512
    window: int = 512
    seeds: int = 1

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UsageError(f"{self.seeds} seeds", found="no input", fix="Give one seed or more")
        if self.text_tokens < 0 or self.window < 2:
            raise UsageError(
                f"text of {self.text_tokens} tokens in windows of {self.window}",
                found="a window predicts its second token from its first",
                fix="Use windows of 2 tokens or more",
            )


def shipped_text() -> str:
    """The English prose that comes with the package: about 1,650 words, written for it."""
    return (resources.files(__package__) / "texts" / "river_mouth.txt").read_text(encoding="utf-8")


def text_tokens(tokenizer: Tokenizer, text: str, *, count: int, vocab_size: int) -> torch.Tensor:
    """The first `count` token ids of `text`, int64 [tokens]; fewer where the text is shorter.

    Raises UsageError when the tokenizer gives an id outside the vocabulary: it belongs to another model.
    """
    ids = tokenizer.encode(text).ids[:count]
    if ids and max(ids) >= vocab_size:
        raise UsageError(
            "tokens of the text",
            found=f"id {max(ids)}, but the model has {vocab_size} tokens",
            fix="Use the tokenizer that belongs to the model",
        )
    return torch.tensor(ids, dtype=torch.int64)


def seeded_inputs(
    inputs: Sequence[TensorRecord], sizes: Mapping[str, int], *, vocab_size: int, seed: int
) -> dict[str, torch.Tensor]:
    """Random inputs: integers are what their record allows, else token ids; floats are normal on the grid n/32.

    sizes gives each dynamic axis its size. A tensor's numbers depend on the seed, its name and shape only.
    Raises UsageError for an axis without a size and for a dtype that no input may have.
    """
    feeds = {}
    for record in inputs:
        missing = [d for d in record.dims if isinstance(d, str) and d not in sizes]
        if missing:
            raise UsageError(
                f"seeded input {record.name!r}",
                found=f"no size for axis {', '.join(missing)}",
                fix=f"Sizes were given for {', '.join(sizes) or 'no axis'}",
            )
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in record.dims)
        key = zlib.crc32(f"{seed}/{record.name}/{shape}".encode())
        generator = torch.Generator().manual_seed(key)
        dtype = dtype_from_name(record.dtype)
        if record.below is not None:
            feeds[record.name] = draw_whole_numbers(record, shape, generator)
        elif dtype in (DType.INT64, DType.INT32):
            feeds[record.name] = torch.randint(
                vocab_size, shape, generator=generator, dtype=dtype.torch
            )
        elif dtype.floating and dtype is not DType.FP8_E4M3:
            normal = torch.randn(shape, generator=generator, dtype=torch.float64)
            steps = (normal * GRID).round().clamp(-LARGEST, LARGEST)
            feeds[record.name] = (steps / GRID).to(dtype.torch)
        else:
            raise UsageError(
                f"seeded input {record.name!r}",
                found=f"dtype {record.dtype}",
                fix="Inputs are token ids (int32, int64) or fp64, fp32, fp16, bf16 numbers",
            )
    return feeds


def axis_ranges(
    inputs: Sequence[TensorRecord], profile: Profile
) -> dict[str, tuple[int, int, int]]:
    """The (min, opt, max) of each dynamic axis, from the profile of the inputs that carry it."""
    ranges = {}
    for record in inputs:
        shapes = profile[record.name]
        for axis, dim in enumerate(record.dims):
            if isinstance(dim, str):
                ranges[dim] = (shapes.min[axis], shapes.opt[axis], shapes.max[axis])
    return ranges


def build_cases(
    inputs: Sequence[TensorRecord],
    profile: Profile,
    plan: InputPlan,
    *,
    vocab_size: int,
    tokens: torch.Tensor | None = None,
) -> tuple[Case, ...]:
    """The cases that fit the profile: windows of the text first, then seeded at opt, odd and smallest sizes.

    tokens: int64 [tokens] of a text, for a model with one integer input [batch, sequence]. A single seeded
    case at opt sizes is left out where windows of text stand in for it. Equal sizes are judged once, but for those
    of several seeds.
    """
    ranges = axis_ranges(inputs, profile)
    cases = list(_windows(inputs, ranges, plan, tokens))
    several = plan.seeds > 1
    wanted = {
        "seeded opt": {axis: opt for axis, (_, opt, _) in ranges.items()},
        "seeded odd": {a: min(max(ODD.get(a, 3), lo), hi) for a, (lo, _, hi) in ranges.items()},
        "seeded smallest": {axis: low for axis, (low, _, _) in ranges.items()},
    }
    if cases and not several:
        del wanted["seeded opt"]
    seen = []
    for name, sizes in wanted.items():
        if sizes not in seen:
            seen.append(sizes)
            feeds = seeded_inputs(inputs, sizes, vocab_size=vocab_size, seed=plan.seed)
            cases.append(Case(name, feeds, repeats=several and name == "seeded opt"))
    for seed in range(plan.seed + 1, plan.seed + plan.seeds):
        feeds = seeded_inputs(inputs, wanted["seeded opt"], vocab_size=vocab_size, seed=seed)
        cases.append(Case(f"seeded opt, seed {seed}", feeds, repeats=True))
    return tuple(cases)


def real_states(
    checkpoint: Checkpoint, layer: int, profile: Profile, text: str | None
) -> tuple[Case, ...]:
    """One case: what reaches block `layer` when the decoder reads `text` (None: the shipped one) at opt sizes.

    The numbers are rounded to bf16 and to the range of fp16, so that every runner gets the same ones. No
    case without a tokenizer, or where the hidden states alone are not enough.
    """
    tokenizer = checkpoint.tokenizer()
    inputs, _ = signature(checkpoint.config, layer, DType.FP64)
    if tokenizer is None or len(inputs) != 1:
        return ()
    batch, sequence, _ = profile[inputs[0].name].opt
    words = shipped_text() if text is None else text
    vocabulary = checkpoint.config.vocab_size
    ids = text_tokens(tokenizer, words, count=batch * sequence, vocab_size=vocabulary)
    if len(ids) < batch * sequence:
        return ()
    hidden = block_inputs(checkpoint, layer, [ids.reshape(batch, sequence)])
    if hidden is None:
        return ()
    states = hidden[0].bfloat16().clamp(-LARGEST_COMMON, LARGEST_COMMON).half().double()
    return (Case("hidden states of the text", {inputs[0].name: states}),)


def _windows(
    inputs: Sequence[TensorRecord],
    ranges: Mapping[str, tuple[int, int, int]],
    plan: InputPlan,
    tokens: torch.Tensor | None,
) -> list[Case]:
    """Cut the tokens into windows of one length, the longest that the plan and the profile allow.

    Fewer tokens than windows x rows are left over, and dropped. No window where the text is too short.
    """
    if tokens is None or len(inputs) != 1 or not inputs[0].dtype.startswith("int"):
        return []
    record = inputs[0]
    batch, sequence = (
        ranges[d] if isinstance(d, str) else (d, d, d) for d in record.dims
    )  # min, opt, max of each
    rows, longest = batch[0], min(plan.window, sequence[2])
    count = -(-len(tokens) // (rows * longest))
    length = len(tokens) // (rows * count) if count else 0
    if length < sequence[0]:  # equal windows would be too short: full ones, and a rest
        count, length = len(tokens) // (rows * longest), longest
    if not count or length < 2:
        return []
    cases = []
    for first in range(0, count * rows * length, rows * length):
        ids = tokens[first : first + rows * length].reshape(rows, length)
        feeds = {record.name: ids.to(dtype_from_name(record.dtype).torch)}
        name = f"text tokens {first}-{first + rows * length - 1}"
        cases.append(Case(name, feeds, text=True))
    return cases
