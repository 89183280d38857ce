"""The lines that tests of all methods go through: every method with its links and options."""

METHODS: dict[str, int | None] = {
    # Threshold rules, and what decides their tau.
    "wgt(0.02)": 32,
    "bgt(0.01) | bitmap": 1,
    "qgt(0.004)": 8,
    "qgt(0.004) | golomb_rice | huffman": 8,
    "strom(0.01) | golomb_rice": 1,
    "wgt(schedule({0: 0.01, 4: 0.03}))": 32,
    "bgt(density(0.1, every=2))": 1,
    "qgt(layers(0.004, patterns={'head*': density(0.2), 'first*': schedule({0: 0.002, 3: 0.004})}))": 8,
    "wgt(density(0.05, warmup=warmup(4)), momentum=0.9)": 32,
    "qgt(sidco(0.1, fit='pareto', every=2))": 8,
    "strom(dl4j(0.01, target=0.1))": 1,
    "bgt(allocate(0.1, every=2))": 1,
    "wgt(allocate(0.1, every=3)) | linear(4, block=32)": 4,
    "strom(0.01, clip=clip(2, to=2))": 1,
    "bgt(0.01, decay=0.5, momentum=0.5)": 1,
    "qgt(0.004, exempt=exempt(names=['*.bias']))": 8,
    # By rank and by chunk.
    "topk(0.1)": 32,
    "topk(0.1, sampled=True) | packed32": 32,
    "topk(0.05, warmup=warmup(4, stages=2), momentum=0.9)": 32,
    "chunked_topk(8, chunk=64)": 2,
    "chunked_topk(4, chunk=32, quantize=None, decay=1) | chunked": 32,
    "random_k(0.1)": 32,
    "random_k(0.3, momentum=0.5, seed=2) | golomb_rice": 32,
    # Sparse, then quantized.
    "random_k(0.2) | linear(4)": 4,
    "wgt(0.02) | linear(4, block=32) | golomb_rice | huffman": 4,
    "wgt(0.02) | quantile(3, block=64) | golomb_rice": 3,
    "wgt(density(0.2)) | entropy": None,
    "wgt(0.02) | fp16 | bitmap": 16,
    "wgt(0.02) | bf16 | packed32": 16,
    "wgt(0.02) | fp8": 8,
    "topk(0.1, momentum=0.5) | linear(4)": 4,
    "chunked_topk(8, chunk=64, exempt=exempt(smaller_than=20)) | linear(8) | huffman": 8,
    # Every element, in fewer bits.
    "linear(4)": 4,
    "linear(12, block=0) | huffman": 12,
    "quantile(3, block=100)": 3,
    "quantile(2, exempt=exempt(smaller_than=20)) | raw": 2,
    "entropy": None,
    "entropy(form='rms', floor=5)": None,
    "fp16": 16,
    "bf16": 16,
    "fp16(decay=1)": 16,
    "bf16(decay=0.5)": 16,
    "fp8 | huffman": 8,
    "qsgd(4, block=40, decay=1)": 4,
    "qsgd(8, norm='l2', decay=1, seed=3) | huffman": 8,
    "terngrad(decay=1)": 2,
    "natural(50, decay=1)": 8,
    "sign": 1,
    "sign(64, exempt=exempt(smaller_than=20))": 1,
    "sign(scale='one')": 1,
    # Through all-reduces.
    "none": 32,
    "powersgd(rank=1, start=2)": 32,
    "powersgd(rank=3, start=4)": 32,
    "powersgd(start=2, feedback=False)": 32,
    "powersgd(rank=2, start=2, min_rate=1, warm_start=False)": 32,
}
"""By line, the value bits of an element sent, as Anoosheh counts them; None where the data decide them."""

IN_LOCAL_STEPS = ("visible", "visible | linear(4, block=32)", "visible_strom(0.01, momentum=0.5)")
"""Those that need agreed weights."""

CONSERVING = (
    "qgt(layers(0.001, patterns={'*bias': 0.002}))",
    "topk(0.1)",
    "random_k(0.1)",
    "chunked_topk(8, chunk=64, decay=1)",
    "wgt(0.001) | quantile(3, block=64)",
    "linear(4)",
    "fp16(decay=1)",
    "fp8",
    "sign",
    "qsgd(decay=1)",
)
"""One of each family, of those that owe every gradient until it is sent."""

MESSAGES = [line for line in METHODS if not line.startswith(("none", "powersgd"))]
"""Those that send messages of their own: what a GPU must write as a CPU does."""

_FORGETTING = ("momentum", "decay=0", "clip", "exempt", "allocate", "dl4j", "topk(8, chunk=64)")

ALONE = [
    *(line for line in MESSAGES if line not in ("fp16", "bf16") and not any(w in line for w in _FORGETTING)),
    "bgt(0.5)",
    "wgt(layers(0.5, patterns={'p1': 1.0}))",
    "qgt(layers(0.1, patterns={'p1': 0.2})) | golomb_rice | huffman",
    "strom(layers(0.5, patterns={'p1': 1.0})) | golomb_rice",
    "topk(0.2) | linear(4, block=16)",
    "chunked_topk(8, chunk=64, decay=1)",
    "bf16(decay=1)",
    "quantile(10) | raw",
    "visible",
    "visible | quantile(3, block=32)",
    "visible_strom(0.5) | golomb_rice",
]
"""Of every method that has messages, forms that forget nothing, and whose thresholds are each parameter's."""
