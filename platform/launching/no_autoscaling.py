"""Replaces Ray Train's autoscaling coordinator on one machine, which cannot grow."""

from typing import Any

_COORDINATOR = "AutoscalingCoordinator"
"""The name and the namespace in which Ray Train looks for this actor before it makes one."""


class NoAutoscaling:
    """Takes the place of Ray Train's autoscaling coordinator.

    Every run waits for that one to start, which imports Ray Data. A Ray that asks other things of it notes a
    warning in its log and goes on.
    """

    def __init__(self) -> None:
        self._pipelines: set[str] = set()

    def request_resources(self, requester_id: str = "", **_: Any) -> None:
        """Only notes who is there: the machine is what it is."""
        if requester_id.startswith("data-"):
            self._pipelines.add(requester_id)

    def cancel_request(self, requester_id: str = "", **_: Any) -> None:
        """Forgets who asked."""
        self._pipelines.discard(requester_id)

    def get_reserved_resources(self, *_: Any, **__: Any) -> dict[str, dict[str, float]]:
        """What a pipeline of Ray Data may use: all CPUs, for which tasks wait, and a share of the memory."""
        import ray  # noqa: PLC0415 - runs in an actor, where it is imported

        whole: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        sharing = max(1, len(self._pipelines))
        share = {name: whole.get(name, 0.0) / sharing for name in ("memory", "object_store_memory")}
        return {"this machine": {"CPU": whole.get("CPU", 0.0)} | share}


def stand_in_for_autoscaling() -> None:
    """Makes that actor on the connected Ray; returns before it is up."""
    import ray  # noqa: PLC0415 - takes seconds

    ray.remote(num_cpus=0)(NoAutoscaling).options(
        name=_COORDINATOR, namespace=_COORDINATOR, lifetime="detached"
    ).remote()
