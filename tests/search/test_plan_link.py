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


@pytest.mark.parametrize(
    "text", ["", "100", "fast", "100mbit,20", "20ms,100mbit", "-1mbit", "1mbit,1ms,2%,3"]
)
def test_what_is_no_link_is_named_with_what_would_be(text):
    with pytest.raises(ValueError, match=r"must be rate, delay one way .* 100mbit,20ms,0\.1%") as refused:
        Link.parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0mbit", "rate must be above 0"),
        ("1mbit,11s", "delay must be at most 10 s"),
        ("1mbit,1ms,100%", "loss must be below"),
    ],
)
def test_numbers_out_of_range_are_named(text, problem):
    with pytest.raises(ValueError, match=problem):
        Link.parse(text)


def test_loss_limits_a_connection_and_not_the_link():
    # Mathis et al.: 1448 bytes * sqrt(3/2) / (0.1 s * sqrt(0.01)) = 177 kB/s
    link = Link.parse("100mbit,50ms,1%")
    assert link.payload_rate() == pytest.approx(177_343, rel=1e-3)
    assert link.payload_rate(3) == pytest.approx(3 * 177_343, rel=1e-3)
    assert link.payload_rate(1000) == pytest.approx(1e8 * 0.95 / 8)
