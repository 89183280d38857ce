"""Shared by the search's tests."""

from collections.abc import Callable

import pytest

from taugrad.search.law.fitting import SHIPPED, FittedLaw, read_law


@pytest.fixture(scope="session")
def a_law() -> Callable[..., FittedLaw]:
    """The law that ships, as if it were for another method, optimizer or place of momentum."""

    def build(kind: str, optimizer: str = "sgd", momentum_in: str = "optimizer") -> FittedLaw:
        looked_for = "floor" if kind == "entropy" else "tau"
        fields = read_law(SHIPPED).model_dump() | {"kind": kind, "looked_for": looked_for}
        return FittedLaw.model_validate(fields | {"optimizers": [optimizer], "momentum_in": momentum_in})

    return build
