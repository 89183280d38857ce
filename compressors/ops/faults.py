"""What readers of messages find wrong: bytes that no encoder writes."""

from ..errors import CorruptMessage

CORRUPT = {
    2: "bits after the last element or symbol are set",
    8: "the Golomb-Rice table is not one of ascending positions of these elements",
    16: "a Golomb-Rice block does not end where its last position and its size say",
    32: "a stream of Huffman codes does not end where its length says",
    64: "positions do not ascend, or pass the last one",
    128: "the body does not hold as many elements as the header says",
    256: "packed indices do not ascend within their chunks, or padding is not zero",
    512: "a value is not finite, smaller than tau, or not of its word's sign",
    1024: "a level is 0; levels are 1 to 255",
    2048: "a value is not finite",
    4096: "a block's range is not finite, or its width is none that is written",
    8192: "a bin's value is not finite, or scaled as none is written",
    16384: "an 8-bit float is no number",
    32768: "a block is scaled as none is written",
    65536: "a level is more than its form has",
    131072: "a word's sign is not that of its value",
}


def fault(bit: int) -> CorruptMessage:
    """The error for one of them."""
    return CorruptMessage(CORRUPT[bit])
