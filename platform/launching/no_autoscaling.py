"""Replaces Ray Train's autoscaling coordinator on one machine, which cannot grow."""

from typing import Any

_COORDINATOR = "AutoscalingCoordinator"
"""The name and the namespace in which Ray Train looks for this actor before it makes one."""


class NoAutoscaling:
    """Takes the place of Ray Train's autoscaling coordinator.

    Every run waits for that one to start, which imports Ray Data. A Ray that asks other things of it notes a
    warning in its log and goes on.
    """

    def request_resources(self, *_: Any, **__: Any) -> None:
        """Does nothing: the machine is what it is."""

    def cancel_request(self, *_: Any, **__: Any) -> None:
        """Does nothing."""

    def get_reserved_resources(self, *_: Any, **__: Any) -> dict[str, dict[str, float]]:
        """What a run whose number of workers may change can use: all that there is."""
        import ray  # noqa: PLC0415 - runs in an actor, where it is imported

        return {"this machine": ray.cluster_resources()}  # type: ignore[no-untyped-call]


def stand_in_for_autoscaling() -> None:
    """Makes that actor on the connected Ray; returns before it is up."""
    import ray  # noqa: PLC0415 - takes seconds

    ray.remote(num_cpus=0)(NoAutoscaling).options(
        name=_COORDINATOR, namespace=_COORDINATOR, lifetime="detached"
    ).remote()
