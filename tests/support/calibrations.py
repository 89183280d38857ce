"""What measurements of a model may have found, for the tests of plans."""

from collections.abc import Mapping
from typing import Any

from taugrad.search.plan.calibrated import Bucket, BucketWork, Calibration, MethodWork


def work(nbytes: float, compress_s: float = 0.0, **fields: Any) -> MethodWork:
    """A method whose only message has so many bytes."""
    bucket = BucketWork(compress_s=compress_s, read_s=0, fill_s=0, nbytes=nbytes)
    return MethodWork(buckets=(bucket,), **fields)


def calibration(
    methods: Mapping[str, MethodWork], elements: int, ready_s: float, **known: Any
) -> Calibration:
    """Of one bucket, whose gradients are there after `ready_s`."""
    fields = dict.fromkeys(("optimizer_s", "optimizer_bytes", "reduce_s", "reduce_half_s"), 0.0)
    fields |= {"batch": 16, "steps_an_epoch": 45, "compute_s": ready_s} | known
    return Calibration(buckets=(Bucket(elements=elements, ready_s=ready_s),), methods=dict(methods), **fields)
