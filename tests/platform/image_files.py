"""Image files, written byte by byte as their formats say."""

import struct
import zlib

import numpy as np


def png(pixels):
    """A PNG (ISO/IEC 15948) of pixels uint8 [height, width, 3], or [height, width] for grey."""
    pixels = np.asarray(pixels, np.uint8)
    height, width = pixels.shape[:2]

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    colour = 2 if pixels.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # filter 0: none
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def ppm(pixels):
    """A binary PPM of pixels uint8 [height, width, 3]."""
    pixels = np.asarray(pixels, np.uint8)
    return b"P6\n%d %d\n255\n" % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()


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
