"""A method at work where the gradients are: only compressed bytes leave the device, if they leave it at all.

The same payloads, residuals and tallies as of `bucket.compressor.Compressor`, bit for bit. The rules, the
codecs and the header are the CPU's; here is what puts the kernels of `ops/cuda` in their place. Arrays are
those of a `Runtime`: `Update` and `Quantized` hold them as they hold NumPy's on the CPU.

The host waits for the device a few times a bucket, however many parameters it has: what needs a small result
to go on is written as steps (`ops/cuda/returns.py`), and the steps of all parameters wait together.
"""

from .bucket import DeviceCompressor

__all__ = ["DeviceCompressor"]
