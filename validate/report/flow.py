"""One block's planned kernels as a drawing: a box for each in execution order, what flows between them, and what passes by.

(kernels, width) -> SVG; a box names type, element type and the nodes that it covers, an arrow the tensor it carries
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ...engines.kernel import HOST, SYNC, Kernel, TensorInfo
from .view import BlockKernels

MOST = 60  # kernels; a longer list reads better as a table
LINE, GAP, RAIL, PAD = 17, 34, 13, 10
CHARACTER = 0.61  # width of a monospaced character over its font size
NODES = 6  # node names in one box


@dataclass(frozen=True, slots=True)
class Page:
    """Width in CSS pixels, font size, and the class that shows or hides the drawing."""

    width: int
    font: int
    css_class: str


PAGES = (Page(620, 13, "plot flow wide"), Page(360, 12, "plot flow narrow"))


@dataclass(frozen=True, slots=True)
class Box:
    """One kernel's place: y of its top, its height, and its lines of node names."""

    kernel: Kernel
    number: int
    top: int
    height: int
    lines: tuple[str, ...]

    @property
    def bottom(self) -> int:
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor from one box to a later one; -1 is the block's entry, the number of boxes its exit."""

    tensor: TensorInfo
    start: int
    end: int

    @property
    def direct(self) -> bool:
        """Whether it goes to the very next box."""
        return self.end == self.start + 1


def flow_plots(block: BlockKernels) -> Markup | None:
    """The drawing for wide and for narrow pages; None for too many kernels, and for ONNX Runtime's profile, whose
    tensors have no names."""
    if block.source != "builder" or not 0 < len(block.kernels) <= MOST:
        return None
    return Markup("").join(_draw(block, page) for page in PAGES)


def edges_of(kernels: Sequence[Kernel]) -> list[Edge]:
    """Every tensor that a kernel of the block reads, from where it was last written; then what leaves the block."""
    written: dict[str, int] = {}
    read: set[tuple[str, int]] = set()
    edges: list[Edge] = []
    for number, kernel in enumerate(kernels):
        for tensor in dict.fromkeys(kernel.inputs):
            start = written.get(tensor.name, -1)
            edges.append(Edge(tensor, start, number))
            read.add((tensor.name, start))
        written |= dict.fromkeys((t.name for t in kernel.outputs), number)
    last = len(kernels)
    for number, kernel in enumerate(kernels):
        for tensor in kernel.outputs:
            if written[tensor.name] == number and (tensor.name, number) not in read:
                edges.append(Edge(tensor, number, last))
    return edges


@dataclass(frozen=True, slots=True)
class Rail:
    """One tensor that passes boxes by: from `start` to each of `ends`, in lane `lane` beside the boxes."""

    tensor: TensorInfo
    start: int
    ends: tuple[int, ...]
    lane: int = 0


def rails_of(edges: Sequence[Edge]) -> list[Rail]:
    """The tensors that pass boxes by, none in a lane with one that it runs beside."""
    readers: dict[tuple[str, int], list[Edge]] = {}
    for edge in edges:
        if not edge.direct:
            readers.setdefault((edge.tensor.name, edge.start), []).append(edge)
    free: list[int] = []  # where each lane is free again
    placed = []
    for same in sorted(readers.values(), key=lambda e: (e[0].start, e[-1].end)):
        start, ends = same[0].start, tuple(edge.end for edge in same)
        lane = next((n for n, end in enumerate(free) if end <= start), len(free))
        free[lane:] = [ends[-1], *free[lane + 1 :]]
        placed.append(Rail(same[0].tensor, start, ends, lane))
    return placed


def _draw(block: BlockKernels, page: Page) -> Markup:
    edges = edges_of(block.kernels)
    rails = rails_of(edges)
    lanes = 1 + max((rail.lane for rail in rails), default=-1)
    right = page.width - PAD - lanes * RAIL - (6 if lanes else 0)
    boxes = _boxes(block, page, right)
    height = (boxes[-1].bottom if boxes else 0) + GAP + LINE
    parts = [_end(page, right, LINE, f"block {block.block}")]
    parts += [_box(box, page, right) for box in boxes]
    parts += [_between(edges, boxes, page, right, number) for number in range(len(boxes) + 1)]
    parts += [_rail(rail, boxes, right) for rail in rails]
    parts.append(_end(page, right, height - 4, "next kernels"))
    label = (
        f"The {len(boxes)} kernels of block {block.block} of {block.engine.target} in {block.variant.precision}, in order, "
        "and the tensors between them. The table below lists them."
    )
    return Markup(
        '<svg class="{}" role="img" aria-label="{}" viewBox="0 0 {} {}" style="max-width:{}px">{}</svg>'
    ).format(page.css_class, label, page.width, height, page.width, Markup("").join(parts))


def _boxes(block: BlockKernels, page: Page, right: int) -> list[Box]:
    boxes, top = [], LINE + GAP
    room = int((right - 2 * PAD - 8) / (CHARACTER * (page.font - 1)))
    for number, kernel in enumerate(block.kernels):
        names = [_short(node, block.block) for node in kernel.nodes] or [kernel.name]
        if len(names) > NODES:
            names = [*names[: NODES - 1], f"and {len(names) - NODES + 1} more"]
        lines = tuple(name if len(name) <= room else name[: room - 1] + "…" for name in names)
        height = LINE * (1 + len(lines)) + 17
        boxes.append(Box(kernel, number, top, height, lines))
        top += height + GAP
    return boxes


def _short(node: str, block: int) -> str:
    """The node's name within its block; that of a neighbouring block keeps its number."""
    return node.removeprefix(f"layers.{block}.")


def _kind(kernel: Kernel) -> str:
    """What colours a box: products, fused attention, everything else, and what is no kernel."""
    if kernel.type in HOST | SYNC or not kernel.on_device:
        return "idle"
    if "mha" in kernel.name or any("Attention" in node for node in kernel.nodes):
        return "attention"
    return "matrix" if kernel.is_matrix else "other"


def _box(box: Box, page: Page, right: int) -> Markup:
    kernel = box.kernel
    title = f"{box.number + 1}  {kernel.type}"
    lines = Markup("").join(
        Markup('<text class="name" x="{}" y="{}" font-size="{}">{}</text>').format(
            PAD + 10, box.top + LINE * (n + 2) + 5, page.font - 1, line
        )
        for n, line in enumerate(box.lines)
    )
    return Markup(
        '<g class="kernel {}"><rect x="{}" y="{}" width="{}" height="{}" rx="8"/>'
        '<text class="title" x="{}" y="{}" font-size="{}">{}</text>'
        '<text class="type" x="{}" y="{}" font-size="{}" text-anchor="end">{}</text>{}</g>'
    ).format(
        *(_kind(kernel), PAD, box.top, right - PAD, box.height),
        *(PAD + 10, box.top + LINE + 3, page.font, title),
        *(right - 10, box.top + LINE + 3, page.font, kernel.dtype, lines),
    )


def _between(
    edges: Sequence[Edge], boxes: Sequence[Box], page: Page, right: int, number: int
) -> Markup:
    """The arrow into box `number` from the one before it, with what it carries; none where nothing goes that way."""
    direct = [edge for edge in edges if edge.direct and edge.end == number]
    if not direct:
        return Markup("")
    top = boxes[number - 1].bottom if number else LINE + 6
    bottom = boxes[number].top if number < len(boxes) else top + GAP - 6
    x = PAD + 30
    text = ", ".join(dict.fromkeys(tensor_text(edge.tensor) for edge in direct))
    room = int((right - x - 14) / (CHARACTER * (page.font - 1)))
    text = text if len(text) <= room else text[: room - 1] + "…"
    return Markup(
        '<path class="edge" d="M{0} {1}V{2}m-4 -5l4 5l4 -5"/><text class="edge" x="{3}" y="{4}" font-size="{5}">{6}</text>'
    ).format(x, top, bottom, x + 12, (top + bottom) // 2 + 4, page.font - 1, text)


def _rail(rail: Rail, boxes: Sequence[Box], right: int) -> Markup:
    """A line beside the boxes, from the side of one to the side of each that reads it."""
    x = right + 12 + rail.lane * RAIL
    start = LINE - 5 if rail.start < 0 else boxes[rail.start].bottom - 8
    path = ""
    for end in rail.ends:
        y = boxes[-1].bottom + GAP + LINE - 9 if end == len(boxes) else boxes[end].top + 12
        path += f"M{right} {start}H{x}V{y}H{right}m5 -4l-5 4l5 4"
    name = f"{rail.tensor.name}: {tensor_text(rail.tensor)}"
    return Markup('<path class="edge rail" d="{}"><title>{}</title></path>').format(path, name)


def _end(page: Page, right: int, y: int, text: str) -> Markup:
    """The word above the first box or below the last."""
    return Markup('<text class="edge" x="{}" y="{}" font-size="{}">{}</text>').format(
        PAD + 10, y - 3, page.font - 1, text
    )


def tensor_text(tensor: TensorInfo) -> str:
    """`fp16 [?×?×576]`."""
    dims = "×".join("?" if d < 0 else str(d) for d in tensor.dims)
    return f"{tensor.dtype} [{dims}]" if dims else f"{tensor.dtype} scalar"


def legend_html() -> Markup:
    """What the colours say."""
    names = {
        "matrix": "matrix product",
        "attention": "attention",
        "other": "generated kernel",
        "idle": "no kernel",
    }
    items = Markup("").join(
        Markup('<span class="key {}">{}</span> ').format(kind, escape(name))
        for kind, name in names.items()
    )
    return Markup('<p class="soft keys">{}</p>').format(items)
