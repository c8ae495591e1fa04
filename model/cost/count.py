"""Cost of one forward pass: parameters by walking the module, products by its matrices and its attention.

matrix       2 * tokens * out * in
attention    2 * heads * (score_dim + value_dim) * pairs       (4 * S * hidden per token for S keys, multi-head)
seconds      sum over sub-layers of max(FLOPs / peak, bytes / bandwidth)
"""

from dataclasses import dataclass

from ...core.errors import UsageError
from ..config import ModelConfig
from ..gpus import Gpu, gpu_from_name
from . import traffic
from .formats import NumberFormat, format_of
from .heads import HeadShape, head_shapes
from .parts import Part, Place, Role, SubLayer, parts_of
from .result import Cost, Mode, Row

_LARGEST = 2**31
_VOCABULARY_HEADS = ("logits", "masked_lm")


def cost(
    config: ModelConfig,
    *,
    batch: int = 1,
    sequence: int = 1024,
    dtype: str = "bf16",
    gpu: str | Gpu = "h100-sxm",
    mode: Mode = "prefill",
) -> Cost:
    """What one pass of the model costs on `gpu` in `dtype` (a name in FORMATS).

    prefill: batch x sequence new tokens; decode: one new token per sequence that sees `sequence` positions. An encoder
    reads `sequence` source tokens, in prefill only. Raises UsageError for a size below 1, an unknown dtype,
    mode or GPU, a dtype that the GPU lacks, or decoding with a model that is an encoder.
    """
    run = _Run(config, mode, batch, sequence)
    gpu = gpu_from_name(gpu) if isinstance(gpu, str) else gpu
    shapes = tuple(head_shapes(config))
    rows = tuple(_row(run, sub_layer, shapes, dtype, gpu) for sub_layer in SubLayer)
    itemsize = format_of(dtype, SubLayer.ATTENTION).activation_itemsize
    own = sum(shape.cached for shape in shapes if shape.place.group == "own")
    kept = sum(shape.cached * shape.kept(sequence) for shape in shapes)
    return Cost(
        mode=mode,
        batch=batch,
        sequence=sequence,
        dtype=dtype,
        gpu=gpu,
        rows=rows,
        kv_cache_bytes_per_token=itemsize * own,
        kv_cache_bytes=itemsize * batch * kept,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    config: ModelConfig
    mode: Mode
    batch: int
    sequence: int

    def __post_init__(self) -> None:
        for name, size in (("batch", self.batch), ("sequence", self.sequence)):
            if not 1 <= size <= _LARGEST:
                raise UsageError(
                    f"{name} {size}", found="out of range", fix=f"Give 1 to {_LARGEST}"
                )
        if self.mode not in ("prefill", "decode"):
            raise UsageError(f"mode {self.mode!r}", found="no such mode", fix="prefill or decode")
        if self.mode == "decode" and not self.config.attention.causal:
            raise UsageError(
                "mode decode", found="the model is an encoder: it has no next token", fix="prefill"
            )

    def tokens(self, place: Place) -> int:
        """How many tokens the parameters there work on."""
        if self.mode == "prefill":
            return self.batch * self.sequence
        return self.batch if place.decodes else 0


@dataclass(slots=True)
class _Sum:
    """What adds up over the layers; traffic in elements."""

    flops: int = 0
    needed: int = 0
    read: int = 0
    moved: int = 0
    cache: int = 0

    def multiply(self, part: Part, tokens: int) -> None:
        """Every token with every expert, of which the active ones are needed."""
        self.flops += 2 * tokens * part.numel
        self.needed += 2 * tokens * (part.numel // part.copies) * part.active


def _row(
    run: _Run, sub_layer: SubLayer, shapes: tuple[HeadShape, ...], dtype: str, gpu: Gpu
) -> Row:
    """One sub-layer over all layers, in bytes."""
    total, parameters = _Sum(), 0
    by_place = {shape.place: shape for shape in shapes}
    for place, parts in parts_of(run.config)[sub_layer].items():
        tokens = run.tokens(place)
        if sub_layer is SubLayer.HEAD and run.config.head.kind == "pooled":
            tokens = run.batch  # the first token of each sequence
        for part in parts:
            parameters += part.numel
            if part.is_matrix:
                total.multiply(part, tokens)
            if part.role is not Role.TABLE:  # a table's rows count as activations
                total.read += part.touched(tokens)
        total.moved += tokens * _elements(run.config, sub_layer, parts, by_place.get(place))
    _add_what_has_no_parameters(run, sub_layer, shapes, total)
    stored: NumberFormat = format_of(dtype, sub_layer)
    return Row(
        name=sub_layer,
        parameters=parameters,
        flops=total.flops,
        needed_flops=total.needed,
        weight_bytes=parameters * stored.weight_itemsize,
        read_weight_bytes=total.read * stored.weight_itemsize,
        activation_bytes=total.moved * stored.activation_itemsize,
        kv_cache_bytes=total.cache * stored.activation_itemsize,
        peak=gpu.peak(stored.peak),
        bandwidth=gpu.bandwidth,
    )


def _elements(
    config: ModelConfig, sub_layer: SubLayer, parts: tuple[Part, ...], heads: HeadShape | None
) -> int:
    match sub_layer:
        case SubLayer.NORM:
            return traffic.norm_elements(parts, heads)
        case SubLayer.QKV | SubLayer.OUTPUT_PROJECTION | SubLayer.FEED_FORWARD:
            return traffic.projected_elements(parts, config.hidden_size)
        case SubLayer.HEAD:
            return traffic.dense_elements(parts)
        case _:
            return 0


def _add_what_has_no_parameters(
    run: _Run, sub_layer: SubLayer, shapes: tuple[HeadShape, ...], total: _Sum
) -> None:
    """Looking tokens up, rotating, attending, and the product with a tied table."""
    config = run.config
    ends = Place(None)
    if sub_layer is SubLayer.EMBEDDING:
        total.moved += run.tokens(ends) * traffic.embedding_elements(config)
        if config.encoder is not None:
            tokens = run.tokens(Place(None, encoder=True))
            total.moved += tokens * traffic.embedding_elements(config.encoder)
    elif sub_layer is SubLayer.ROPE:
        total.moved += sum(2 * s.rotated * run.tokens(s.place) for s in shapes)
    elif sub_layer is SubLayer.ATTENTION:
        for shape in shapes:
            _attend(run, shape, total)
    elif sub_layer is SubLayer.HEAD and config.head.kind in _VOCABULARY_HEADS:
        total.moved += run.tokens(ends) * (config.hidden_size + config.vocab_size)
        if config.tie_word_embeddings:
            table = Part("tied", "lm_head", (config.vocab_size, config.hidden_size), Role.LAST)
            total.multiply(table, run.tokens(ends))
            total.read += table.numel


def _attend(run: _Run, shape: HeadShape, total: _Sum) -> None:
    tokens, sequence = run.tokens(shape.place), run.sequence
    if run.mode == "prefill":
        pairs, needed = sequence**2, shape.visible_pairs(sequence)
        width = shape.num_heads * (shape.score_dim + shape.value_dim)
        total.moved += tokens * (width + shape.expanded)
        total.cache += tokens * shape.cached
    elif tokens:
        pairs = needed = shape.kept(sequence)
        total.moved += tokens * shape.num_heads * sum(shape.cached_dims)
        new = 1 if shape.place.group == "own" else 0
        total.cache += tokens * (shape.kept(sequence) + new) * shape.cached
    else:
        return
    per_pair = shape.flops_per_pair(cached=run.mode == "decode")
    total.flops += run.batch * pairs * per_pair
    total.needed += run.batch * needed * per_pair
