"""What holds for every kind of data."""

from typing import get_args

from taugrad.platform.data.config import DataConfig
from taugrad.platform.data.loading import _READERS


def test_every_kind_has_a_reader():
    union, _ = get_args(DataConfig)
    assert set(_READERS) == set(get_args(union))
