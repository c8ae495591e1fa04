"""What a planned engine is made of: device kernels, kernels per block, and the types they compute in."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from .kernel import Kernel, block_of


def device_kernels(kernels: Sequence[Kernel]) -> int:
    """How many entries are kernel launches on the device."""
    return sum(kernel.on_device for kernel in kernels)


def dtype_census(kernels: Sequence[Kernel]) -> dict[str, int]:
    """Element type -> device kernels that compute in it, most first."""
    return dict(Counter(kernel.dtype for kernel in kernels if kernel.on_device).most_common())


def kernel_blocks(kernels: Sequence[Kernel]) -> list[int | None]:
    """The block each entry belongs to, by the names of the nodes it covers; None outside the blocks.

    A kernel that spans two blocks (TensorRT fuses the last add of one with the first norm of the next) belongs to
    the later one: each inner block then gets exactly one such kernel, which is what one more block costs.
    A kernel without nodes (a transposed copy) belongs where its input was made, else where its output is read; where the
    listing names no tensors (ONNX Runtime's, in the order of the run), in the block whose kernels run before and after it.
    """
    blocks: list[int | None] = []
    made: dict[str, int] = {}  # tensor -> block
    for kernel in kernels:
        named = [b for node in kernel.nodes if (b := block_of(node)) is not None]
        if not named and not kernel.nodes:
            named = [made[t.name] for t in kernel.inputs if t.name in made]
        blocks.append(max(named, default=None))
        if named:
            made |= dict.fromkeys((t.name for t in kernel.outputs), max(named))
    read: dict[str, int] = {}
    for index in reversed(range(len(kernels))):
        if blocks[index] is None and not kernels[index].nodes:
            later = [read[t.name] for t in kernels[index].outputs if t.name in read]
            blocks[index] = min(later, default=None)
        if (block := blocks[index]) is not None:
            read |= dict.fromkeys((t.name for t in kernels[index].inputs), block)
    return _between(kernels, blocks)


def _between(kernels: Sequence[Kernel], blocks: list[int | None]) -> list[int | None]:
    """Blocks of the kernels that have neither nodes nor named tensors: the neighbours' where these agree."""
    unknown = [
        block is None and not kernel.nodes and {t.name for t in kernel.outputs} == {""}
        for kernel, block in zip(kernels, blocks, strict=True)
    ]
    after: list[int | None] = []
    for block, open_ in zip(reversed(blocks), reversed(unknown), strict=True):
        after.append(after[-1] if open_ and after else block)
    found: list[int | None] = []
    for block, open_, following in zip(blocks, unknown, reversed(after), strict=True):
        before = found[-1] if found else None
        found.append(before if open_ and before == following else block)
    return found


def kernels_per_block(kernels: Sequence[Kernel], num_blocks: int) -> float | None:
    """Device kernels that one block costs: the median over the inner blocks; None without blocks.

    The first and last block are left out where there are three or more: they carry what the whole model needs
    once (positions, the final add).
    """
    if num_blocks < 1:
        return None
    counts = Counter(
        block
        for kernel, block in zip(kernels, kernel_blocks(kernels), strict=True)
        if kernel.on_device and block is not None
    )
    present = sorted(counts)  # a single exported block keeps its own number
    inner = present[1:-1] if num_blocks >= 3 else present
    return float(median(counts[b] for b in inner)) if inner else None
