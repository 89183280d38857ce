"""Every method with its links and options: what must hold for all of them is tested on these lines."""

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
    "strom(law(0.5, p99=0.25, layer=-0.1)) | golomb_rice": 1,
    "strom(0.01, clip=clip(2, to=2))": 1,
    "bgt(0.01, decay=0.5, momentum=0.5)": 1,
    "qgt(0.004, exempt=exempt(names=['*.bias']))": 8,
    # By rank and by chunk.
    "topk(0.1)": 32,
    "topk(0.1, sampled=True) | packed32": 32,
    "topk(0.05, warmup=warmup(4, stages=2), momentum=0.9)": 32,
    "chunked_topk(8, chunk=64)": 2,
    "chunked_topk(4, chunk=32, quantize=None, decay=1) | chunked": 32,
    # Sparse, then quantized.
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
    "entropy(law(3, p99=0.5))": None,
    "fp16": 16,
    "bf16": 16,
    "fp16(decay=1)": 16,
    "bf16(decay=0.5)": 16,
    "fp8 | huffman": 8,
    # Through all-reduces.
    "none": 32,
    "powersgd(rank=1, start=2)": 32,
    "powersgd(rank=2, start=2, min_rate=1, warm_start=False)": 32,
}
"""By line, the value bits of an element sent, as Anoosheh counts them; None where the data decide them."""

CONSERVING = (
    "qgt(layers(0.001, patterns={'*bias': 0.002}))",
    "topk(0.1)",
    "chunked_topk(8, chunk=64, decay=1)",
    "wgt(0.001) | quantile(3, block=64)",
    "linear(4)",
    "fp16(decay=1)",
    "fp8",
)
"""One of each family, of those that owe every gradient until it is sent."""
