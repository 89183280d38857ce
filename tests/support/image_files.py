"""Image files: usual ones by Pillow, and TIFFs byte by byte, as the format says."""

import io
import struct

import numpy as np
from PIL import Image


def _encoded(pixels, kind):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def png(pixels):
    """A PNG of pixels [height, width, 3], or [height, width] for grey, which may be uint16."""
    pixels = np.asarray(pixels)
    return _encoded(pixels if pixels.dtype == np.uint16 else pixels.astype(np.uint8), "PNG")


def ppm(pixels):
    """A binary PPM of pixels [height, width, 3]."""
    return _encoded(np.asarray(pixels, np.uint8), "PPM")


def noise(seed, height, width):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_tree(root, counts, *, height=12, width=12):
    """`counts`: images by class; the first of each class is a PPM. Returns pixels by `CLASS/FILE`."""
    made = {}
    for label, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = noise([label, i], height, width) // 4 + 40 * label
            end, content = ("ppm", ppm(pixels)) if i == 0 else ("png", png(pixels))
            (root / name / f"{i:03}.{end}").write_bytes(content)
            made[f"{name}/{i:03}.{end}"] = pixels
    return made


def tiff(data, height, width, bits, *, sample_format=1, photometric=1, big=False):
    """A grey TIFF 6.0 of one strip, whose samples are given as bytes; `photometric` 0: white is 0."""
    end = ">" if big else "<"
    fields = {256: ("I", width), 257: ("I", height), 258: ("H", bits), 259: ("H", 1)}
    fields |= {262: ("H", photometric), 273: ("I", 8), 277: ("H", 1), 278: ("I", height)}
    fields |= {279: ("I", len(data)), 339: ("H", sample_format)}
    entries = b"".join(
        struct.pack(f"{end}HHI", tag, {"H": 3, "I": 4}[form], 1)
        + struct.pack(f"{end}{form}", value).ljust(4, b"\0")
        for tag, (form, value) in fields.items()
    )
    begin = (b"MM" if big else b"II") + struct.pack(f"{end}HI", 42, 8 + len(data))
    return begin + data + struct.pack(f"{end}H", len(fields)) + entries + bytes(4)
