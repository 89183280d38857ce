"""Which threshold policy `taugrad auto` should take: accuracy and wire bytes of short simulated trainings.

    python benchmarks/auto_policies.py

Two workers, `strom | golomb_rice`; a row for each policy and density, and beside the measured wire MB those
that the estimate behind `--budget` expects.
"""

from sync_runs import train

from taugrad.platform.spec import RunSpec
from taugrad.search.costs import cost_of

POLICIES = ("density({d:g}, every=50)", "allocate({d:g}, every=200)", "sidco({d:g})")
DENSITIES = (0.001, 0.003, 0.01, 0.03)
TRAININGS = {
    "mnist5k, LeNet, 3 epochs": {"training": {"epochs": 3}},
    "digits, mlp, 10 epochs": {
        "data": {"kind": "digits"},
        "model": {"kind": "mlp", "widths": [64]},
        "training": {"epochs": 10, "optimizer": {"kind": "sgd", "lr": 0.05}},
    },
}


def main() -> None:
    """Trains, and prints one table for each model."""
    for title, fields in TRAININGS.items():
        columns = ("tau", "accuracy", "sent", "wire MB", "expected MB", "times smaller")
        print(f"\n{title}\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
        taus = [policy.format(d=d) for policy in POLICIES for d in DENSITIES]
        # A training that diverges shall not end the others: it shows as one that learned little.
        lines = ["none", *(f"strom({tau}, nonfinite='skip') | golomb_rice" for tau in taus)]
        common = {**fields, "sync": {"mode": "simulated"}}
        specs = [RunSpec.model_validate({**common, "compressor": line}) for line in lines]
        for name, spec, outcome in zip(["none", *taus], specs, train(specs), strict=True):
            tau = getattr(spec.compressor, "tau", None)
            density = getattr(tau, "target", None) or getattr(tau, "density", None)
            expected = "" if density is None else f"{cost_of(spec).wire_bytes(density) / 1e6:.4g}"
            share = outcome.elements / (outcome.parameters * outcome.workers * outcome.steps)
            print(
                f"| `{name}` | {100 * outcome.accuracy:.2f}% | {100 * share:.3g}% "
                f"| {outcome.wire_bytes / 1e6:.4g} | {expected} | {outcome.compression_ratio:,.4g} |"
            )


if __name__ == "__main__":
    main()
