"""Rates, kept by the kernel's token buckets (tc tbf)."""

from .namespaces import ip
from .topology import Link

QUEUE_S = 0.05
"""Seconds of traffic that wait before a link; what comes on top is lost, as in a router."""
_BURST_S = 0.0005
"""What may go at once, above two frames: less makes the kernel miss the rate on fast links."""


def limit(namespace: str, device: str, link: Link, mtu: int, *, anew: bool = False) -> None:
    """Limits what leaves by a device.

    Args:
        namespace: where the device is.
        device: its name.
        link: its rate.
        mtu: bytes of its largest packet.
        anew: whether it is limited already.
    """
    burst = max(2 * (mtu + 18), int(link.rate * _BURST_S / 8))
    bucket = f"rate {link.rate:.0f}bit burst {burst} latency {QUEUE_S * 1000:g}ms"
    ip(f"-n {namespace} qdisc {'change' if anew else 'add'} dev {device} root tbf {bucket}", tool="tc")
