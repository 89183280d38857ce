"""Links as people write them."""

import pytest

from taugrad.search.plan.link import Link


@pytest.mark.parametrize(
    ("text", "rate", "delay", "loss"),
    [
        ("100mbit", 1e8, 0, 0),
        ("1gbit", 1e9, 0, 0),
        ("50mbit,10ms,0.1%", 5e7, 0.01, 0.001),
        ("512 kbit, 250us", 5.12e5, 2.5e-4, 0),
        ("2.5GBIT,1s", 2.5e9, 1, 0),
    ],
)
def test_a_link_is_rate_delay_and_loss(text, rate, delay, loss):
    link = Link.parse(text)
    assert (link.rate, link.delay, link.loss) == pytest.approx((rate, delay, loss))
    assert Link.parse(str(link)) == link


def test_loss_limits_a_connection_and_not_the_link():
    # Mathis et al.: 1448 bytes * sqrt(3/2) / (0.1 s * sqrt(0.01)) = 177 kB/s
    link = Link.parse("100mbit,50ms,1%")
    assert link.payload_rate() == pytest.approx(177_343, rel=1e-3)
    assert link.payload_rate(3) == pytest.approx(3 * 177_343, rel=1e-3)
    assert link.payload_rate(1000) == pytest.approx(1e8 * 0.95 / 8)
