"""Who takes part in choose/auto_threshold.py: ways to a threshold without a search, at their defaults.

Everybody has three trainings at most, with three settings of its own, and one of them by itself. SIDCo's and
DL4J's are those that their authors name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from taugrad.compressors.method.policies import Law
from taugrad.search.auto import DENSITIES

from .auto_pairs import CORRECTED, METHOD


@dataclass(frozen=True)
class Entrant:
    """A way to a threshold."""

    name: str
    settings: tuple[str, ...]
    """Compressors' lines."""


DEFAULT = "taugrad auto"
"""By a law, with momentum before the threshold."""
TOLERANCES = (0.5, 4.0, 32.0)
"""Points of accuracy that its three trainings may lose: the default of the command, then eight times that."""
RIVALS = ("DL4J", "SIDCo, strom", "SIDCo, wgt")


def entrants(laws: Mapping[float, Law]) -> list[Entrant]:
    """All of them.

    Args:
        laws: of a pair with CORRECTED, by tolerance, as a law says that was fitted to other models and data.
    """
    given = tuple(CORRECTED.format(tau=str_of(laws[tolerance])) for tolerance in TOLERANCES)
    return [
        Entrant(DEFAULT, given),
        Entrant("allocate", tuple(_strom(f"allocate({d:g})") for d in (0.001, *DENSITIES))),
        Entrant("density", tuple(_strom(f"density({d:g})") for d in (0.001, *DENSITIES))),
        # Aji and Heafield's and SIDCo's evaluations use 10%, 1% and 0.1%; SIDCo fits in every iteration.
        Entrant("SIDCo, strom", tuple(_strom(f"sidco({d:g}, every=1)") for d in (0.001, 0.01, 0.1))),
        Entrant("SIDCo, wgt", tuple(_strom(f"sidco({d:g}, every=1)", "wgt") for d in (0.001, 0.01, 0.1))),
        # The adaptive rule's defaults, and the target sparsity's; both clip residuals.
        Entrant("DL4J", tuple(_dl4j(tau) for tau in ("dl4j", "dl4j(target=0.001)", "dl4j(target=0.01)"))),
    ]


def _strom(tau: str, rule: str = "strom") -> str:
    return METHOD.replace("strom", rule, 1).format(tau=tau if "(" in tau else f"{tau}()")


def _dl4j(tau: str) -> str:
    return _strom(tau).replace("nonfinite=", "clip=clip(5), nonfinite=", 1)


def str_of(law: Law) -> str:
    """A law as a line has it."""
    fields = law.model_dump(exclude={"kind"})
    return f"law({', '.join(f'{name}={value!r}' for name, value in fields.items())})"
