"""Image files, written byte by byte as their formats say."""

import struct
import zlib

import numpy as np


def png(pixels):
    """A PNG (ISO/IEC 15948) of pixels [height, width, 3], or [height, width] for grey; 16 bits of uint16."""
    pixels = np.asarray(pixels)
    bits = 16 if pixels.dtype == np.uint16 else 8
    pixels = pixels.astype(">u2" if bits == 16 else np.uint8)
    height, width = pixels.shape[:2]

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    colour = 2 if pixels.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
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


def tiff(data, height, width, bits, *, sample_format=1, photometric=1, big=False):
    """A grey TIFF 6.0 of one strip, whose samples are given as bytes; `photometric` 0: white is 0."""
    end = ">" if big else "<"
    short, long = 3, 4
    tags = [
        (256, long, width),
        (257, long, height),
        (258, short, bits),
        (259, short, 1),
        (262, short, photometric),
        (273, long, 8),
        (277, short, 1),
        (278, long, height),
        (279, long, len(data)),
        (339, short, sample_format),
    ]
    entries = b"".join(
        struct.pack(f"{end}HHI", tag, kind, 1)
        + (struct.pack(f"{end}HH", value, 0) if kind == short else struct.pack(f"{end}I", value))
        for tag, kind, value in tags
    )
    begin = (b"MM" if big else b"II") + struct.pack(f"{end}HI", 42, 8 + len(data))
    return begin + data + struct.pack(f"{end}H", len(tags)) + entries + bytes(4)
