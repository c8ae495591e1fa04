"""Counting: which entries are kernels, what a block costs, and the types kernels compute in."""

import pytest

from blockforge.core.errors import ArtefactError
from blockforge.engines.kernel import Kernel, TensorInfo, block_of
from blockforge.engines.layers_file import LayersFile, load_layers, save_layers
from blockforge.engines.listing import kernels_from_listing
from blockforge.engines.plan import device_kernels, dtype_census, kernel_blocks, kernels_per_block


def tensor(dtype, *dims, name="t"):
    return TensorInfo(name, dtype, dims)


def kernel(*nodes, type="kgen", reads=(), writes=()):
    return Kernel(
        name="k",
        type=type,
        inputs=tuple(tensor("fp16", -1, 4, name=n) for n in reads),
        outputs=tuple(tensor("fp16", -1, 4, name=n) for n in writes),
        nodes=nodes,
    )


@pytest.mark.parametrize(
    ("type", "counts"),
    [
        *[
            (t, True)
            for t in (
                *("kgen", "gemm", "runtime_fusion", "runtime_function", "correlation", "maxpool"),
                "never_seen_before",
            )
        ],
        *[
            (t, False)
            for t in (
                *(
                    "shape_call",
                    "signal",
                    "wait",
                    "copy",
                    "memset",
                    "ShapeHostToDevice",
                    "jmp",
                    "cjmp",
                ),
            )
        ],
    ],
)
def test_kernel_launches_are_counted_and_an_unknown_type_is_one(type, counts):
    assert device_kernels([kernel(type=type)]) == counts


def test_recorded_engines(listings):
    counted = {n: device_kernels(kernels_from_listing(text, n)) for n, text in listings.items()}
    lines = {
        name: sum(
            f"LayerType: {t}," in line
            for line in text.split("\n")
            for t in ("kgen", "gemm", "runtime_fusion", "runtime_function")
        )
        for name, text in listings.items()
    }
    assert counted == lines
    fp8 = kernels_from_listing(listings["fp8_sm120"], "fp8")
    assert {k.type for k in fp8 if not k.on_device} == {"shape_call", "signal", "wait"}
    assert (
        dtype_census(fp8)["fp8_e4m3"] >= 7
    )  # seven linears and the kernels that quantise for them


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("layers.0.self_attn.q_proj/MatMul", 0),
        ("layers.12/Add", 12),
        ("model.layers.3.mlp/Mul", 3),
        ("layers.4", 4),
        ("norm/RMSNormalization", None),
        ("multilayers.3.x", None),
        ("layers.3x/Add", None),
        ("players.7/Add", None),
    ],
)
def test_block_of_a_node_name(name, block):
    assert block_of(name) == block


def chain_of(blocks, span=True):
    """Kernels of a chain: three of its own a block, and one that ends a block and opens the next."""
    kernels = [kernel("Gather"), kernel("layers.0.norm/RMSNormalization")]
    for i in range(blocks):
        kernels += [kernel(f"layers.{i}.a/MatMul"), kernel(f"layers.{i}.b/MatMul")]
        last = i == blocks - 1
        end = ("norm/RMSNormalization",) if last else (f"layers.{i + 1}.norm/RMSNormalization",)
        kernels.append(kernel(f"layers.{i}/Add", *end))
    return kernels


def test_kernels_per_block_is_what_one_more_block_costs():
    for blocks in (3, 4, 7):
        grown = device_kernels(chain_of(blocks + 1)) - device_kernels(chain_of(blocks))
        assert kernels_per_block(chain_of(blocks), blocks) == grown == 3


def test_a_kernel_of_two_blocks_belongs_to_the_later():
    assert kernel_blocks([kernel("layers.0/Add", "layers.1.norm/RMSNormalization")]) == [1]


def test_a_kernel_without_nodes_belongs_to_its_data():
    made = [
        kernel("layers.2.v_proj/MatMul", writes=("v",)),
        kernel(reads=("v",), writes=("turned",)),
        kernel("layers.2/Attention", reads=("turned",)),
    ]
    assert kernel_blocks(made) == [2, 2, 2]
    turned_for_the_next = [*made[:2], kernel("layers.3/Attention", reads=("turned",))]
    assert kernel_blocks(turned_for_the_next) == [2, 2, 3]
    only_read = [kernel(writes=("w",)), kernel("layers.5/Attention", reads=("w",))]
    assert kernel_blocks(only_read) == [5, 5]
    assert kernel_blocks([kernel("Gather", reads=("v",)), kernel(reads=("x",))]) == [None, None]


def test_a_kernel_without_nodes_or_names_belongs_between_its_neighbours():
    """ONNX Runtime's own nodes: a fused gate inside a block is the block's, one between two blocks is nobody's."""
    own = kernel(writes=("",))
    first, second = kernel("layers.0.mlp/MatMul"), kernel("layers.1.mlp/MatMul")
    outside, other = kernel("head/MatMul"), kernel("embed/Gather")
    ran = [own, other, first, own, own, first, own, second, own, outside, own]
    assert kernel_blocks(ran) == [None, None, 0, 0, 0, 0, None, 1, None, None, None]
    named = [
        first,
        kernel(writes=("t",)),
        kernel(),
        first,
    ]  # TensorRT's copy that nobody reads, and its events
    assert kernel_blocks(named) == [0, None, None, 0]


def test_first_and_last_block_do_not_count_where_there_are_inner_ones():
    heavy_ends = (
        [kernel("layers.0/Add")] * 9 + [kernel("layers.1/Add")] * 2 + [kernel("layers.2/Add")] * 7
    )
    assert kernels_per_block(heavy_ends, 3) == 2
    assert kernels_per_block(heavy_ends[:11], 2) == 5.5
    assert (
        kernels_per_block([kernel("layers.17/Add")] * 4, 1) == 4
    )  # one exported block keeps its number
    assert kernels_per_block([kernel("Gather")], 0) is None
    assert kernels_per_block([kernel("Gather")], 4) is None


@pytest.mark.parametrize(
    ("made", "dtype"),
    [
        # RMSNormalization: fp16 in and out, its fp32 sum is inside
        (Kernel("n", "kgen", (tensor("fp16", -1, 8),), (), (tensor("fp16", -1, 8),)), "fp16"),
        # a gemm's alpha and bias are fp32 whatever it multiplies
        (
            Kernel(
                "g",
                "gemm",
                (tensor("fp16", -1, 8),),
                (tensor("fp16", 8, 8), tensor("fp32", 1), tensor("fp32", 1, 8)),
                (tensor("fp16", -1, 8),),
            ),
            "fp16",
        ),
        # it adds an fp32 residual
        (
            Kernel(
                "g",
                "runtime_fusion",
                (tensor("fp32", -1, 8), tensor("fp16", -1, 8)),
                (tensor("fp16", 8, 8),),
                (tensor("fp32", -1, 8),),
            ),
            "fp16",
        ),
        # fp32 operands behind an fp16 output
        (
            Kernel(
                "g",
                "gemm",
                (tensor("fp32", -1, 8),),
                (tensor("fp32", 8, 8),),
                (tensor("fp16", -1, 8),),
            ),
            "fp32",
        ),
        # fp8 weights multiplied in fp16
        (Kernel("g", "gemm", (tensor("fp16", -1, 8),), (tensor("fp8_e4m3", 8, 8),), ()), "fp16"),
        (
            Kernel("g", "gemm", (tensor("fp8_e4m3", -1, 8),), (tensor("fp8_e4m3", 8, 8),), ()),
            "fp8_e4m3",
        ),
        (Kernel("i", "kgen", (tensor("int64", -1),), (), (tensor("int32", -1),)), "int32"),
        (Kernel("s", "shape_call"), "none"),
    ],
)
def test_the_type_a_kernel_computes_in(made, dtype):
    assert made.dtype == dtype


def layers(listings):
    kernels = kernels_from_listing(listings["fp16_sm89"], "engine")
    return LayersFile(
        target="tensorrt-rtx:sm89", runtime="r 1", source="builder", num_blocks=3, kernels=kernels
    )


def test_layers_file_round_trip(listings, tmp_path):
    save_layers(layers(listings), tmp_path / "x.layers.json")
    assert load_layers(tmp_path / "x.layers.json") == layers(listings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "JSON"),
        (lambda text: text.replace('"schema_version":1', '"schema_version":2'), "schema_version"),
        (lambda text: text.replace('"nodes"', '"onnx"'), "kernels.0"),
        (lambda text: "", "JSON"),
    ],
)
def test_a_damaged_layers_file_is_one_error(listings, tmp_path, change, words):
    path = tmp_path / "x.layers.json"
    save_layers(layers(listings), path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ArtefactError, match=words):
        load_layers(path)


def test_a_missing_layers_file_is_one_error(tmp_path):
    with pytest.raises(ArtefactError, match="No such file"):
        load_layers(tmp_path / "none.json")
