"""Small runs in every mode: the table that the tests of modes go by, of mode_specs.yaml.

Legend: N = 3 workers, P parameters, T iterations.
"""

from pathlib import Path
from typing import Any

import yaml
from plain import sgd, small

WORKERS, EXAMPLES, BATCH, EPOCHS = 3, 250, 30, 2  # the last batch of an epoch has 10: uneven among 3
ITERATIONS, MIDDLE = 18, 7
PARAMETERS = 16 * 12 + 12 + 12 * 10 + 10
RATE = 0.002
Spec = dict[str, Any]

BASE = small(EXAMPLES, 101, epochs=EPOCHS, batch_size=BATCH, optimizer=sgd(0.1, 0.9, 1e-3)) | {
    "tracking": {"flush_interval": 4, "layer_interval": 5},
    "checkpoint": {"interval": MIDDLE},
    "workers": {"count": WORKERS},
    "sync": {"mode": "gradients"},
}
IMAGES = BASE | {
    "data": BASE["data"] | {"height": 16, "width": 16},
    "model": {"kind": "lenet"},
    "training": BASE["training"] | {"optimizer": BASE["training"]["optimizer"] | {"lr": RATE}},
    "sync": {"mode": "hybrid"},
}


def _beside(base: Spec, fields: Spec) -> Spec:
    within = {name: base[name] | fields.get(name, {}) for name in ("training", "sync")}
    return base | fields | within


def hybrid(line: str = "none", fields: Spec | None = None, model: Spec | None = None, **sync: Any) -> Spec:
    """A hybrid run, with other fields of its training."""
    changes = {"compressor": line, "training": fields or {}, "sync": sync}
    return _beside(IMAGES, changes | ({"model": model} if model else {}))


def simulating(spec: Spec, workers: int | None = None) -> Spec:
    """The same with simulated workers, or with another number of them."""
    sync = {"mode": "simulated", "of": {k: v for k, v in spec["sync"].items() if k != "authenticated"}}
    return spec | {"sync": sync, "workers": {"count": workers or spec["workers"]["count"]}}


_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
LONG: set[str] = set(_TABLE.pop("long"))
HOOKED, SITED, IN_ROUNDS, ASYNC, ON_SCHEDULE, FREE, HYBRID = (
    {name: _beside(IMAGES if group == "hybrid" else BASE, fields) for name, fields in specs.items()}
    for group, specs in _TABLE.items()
)
