"""An island as a member: the processes that together hold one sharded model, such as under FSDP2.

Rank 0 of their group, the leader, is the member. Its rounds have stand-ins for the parameters: each is
gathered into the leader's memory when it is first used in a call, and scattered when the call ends, if it has
changed. Between calls nothing is kept, so that no call uses old values. The others are in the same call, and
do what the leader tells, until it tells how the call has ended. Islands that exchange gradients, and stay to
the end, are a mode of the platform (`platform/synchronization/islands.py`).
"""

import json
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ... import gloo_threads  # noqa: F401 - the interpreter's end waits for the threads of the last collective
from ...errors import CompressionError, CorruptMessage, MemberRefused, NonFiniteWeight, PeerLost, reaching
from ..addresses import transport_of
from ..tensors import broadcast, buffers_of

T = TypeVar("T")

_GATHER, _SCATTER, _BUFFERS, _WAIT, _END = range(5)
"""What the leader tells: a number, of a parameter or of bytes that follow, is beside it."""
_PULSE_S = 1.0
"""While the leader waits, it tells so this often: so a process that is gone is noticed."""
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (CorruptMessage, MemberRefused, NonFiniteWeight, OSError, TypeError, ValueError)
}
"""Those that are the same on all processes; another one of the leader is a RuntimeError on the others."""


class StandIn:
    """A parameter in the rounds of the leader, which use it as a DTensor whose values are all here.

    Attributes:
        device: of the model, where the outer optimizer steps, as without an island.
    """

    def __init__(self, island: "Island", number: int, parameter: Tensor) -> None:
        """Stands in for a parameter of an island."""
        self._island, self._number, self.device = island, number, parameter.device

    def to_local(self) -> Tensor:
        """The whole values, of which the island gets the changes; outside of a call, a tensor without any."""
        return self._island.whole(self._number)


class Island:
    """The processes of one sharded model, and what they do together.

    Attributes:
        rank: this process's; the leader's is 0.
        size: how many there are.
        leads: whether this process is the leader, and acts in a call.
        stand_ins: of the parameters, in their order.
    """

    def __init__(
        self, parameters: Sequence[Tensor], model: nn.Module | None, group: dist.ProcessGroup
    ) -> None:
        """Takes part with all processes of a group; raises ValueError where they are not the model's.

        If the model is given, all take the leader's buffers after a call that has changed weights.
        """
        self.stand_ins: list[Any] = [StandIn(self, *held) for held in enumerate(parameters)]
        self._parameters, self._model, self._group = parameters, model, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        ranks = dist.get_process_group_ranks(group)
        for parameter in parameters:
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is not None and (holders := mesh.mesh.flatten().tolist()) != ranks:
                raise ValueError(
                    f"model is sharded over the ranks {holders}, group has {ranks}: with members, it must "
                    "have those that hold one model, in the same order"
                )
        for name, buffer in buffers_of(model).items() if model is not None else ():
            if hasattr(buffer, "device_mesh"):
                raise ValueError(f"buffer {name!r} is a DTensor: with members, give buffers=False")
        self._device = transport_of(group, parameters[0].device)
        self._wholes: dict[int, tuple[Tensor, int]] = {}
        """By number of a parameter, what is gathered in this call, and autograd's count of changes before."""
        self.leads, self._ending, self._next_pulse = False, b"", 0.0

    def whole(self, number: int) -> Tensor:
        """A parameter's values, gathered where they are not here yet; outside of a call, on no device."""
        if not self.leads:
            parameter = self._parameters[number]
            return torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        if number not in self._wholes:
            self._tell(_GATHER, number)
            self._gather(number)
        return self._wholes[number][0]

    def call(self, action: Callable[[], T]) -> T:
        """Lets the leader act; all call it together, and return or raise the same, as JSON keeps it.

        Raises PeerLost where a process of the island is gone.
        """
        with reaching(), torch.no_grad():
            return self._follow() if self.rank else self._lead(action)

    def _lead(self, action: Callable[[], T]) -> T:
        problem, result, self.leads = None, None, True
        try:
            result = action()
        except PeerLost:  # there is nobody to tell it
            raise
        except Exception as error:
            problem = error
        finally:
            self.leads = False
        changed = [number for number, (whole, before) in self._wholes.items() if whole._version != before]
        for number in changed:
            self._tell(_SCATTER, number)
            self._scatter(number)
        self._wholes.clear()
        if changed and self._model is not None:
            self._tell(_BUFFERS)
            self._share_buffers(self._model)
        ending = json.dumps({"result": result} if problem is None else _described(problem)).encode()
        if ending == self._ending:  # such as that nothing was done
            self._tell(_END)
        else:
            self._tell(_END, len(ending))
            dist.broadcast(self._bytes(ending), group=self._group, group_src=0)
        self._ending = ending
        if problem is not None:
            raise problem
        return result  # type: ignore[return-value]

    def _follow(self) -> Any:
        while True:
            told = torch.empty(2, dtype=torch.int64, device=self._device)
            dist.broadcast(told, group=self._group, group_src=0)
            kind, number = told.tolist()
            if kind == _GATHER:
                self._gather(number)
            elif kind == _SCATTER:
                self._scatter(number)
            elif kind == _BUFFERS and self._model is not None:
                self._share_buffers(self._model)
            elif kind == _END:
                if number:
                    data = self._bytes(bytes(number))
                    dist.broadcast(data, group=self._group, group_src=0)
                    self._ending = data.cpu().numpy().tobytes()
                ending = json.loads(self._ending)
                if "error" in ending:
                    raise _ERRORS.get(ending["error"], RuntimeError)(*ending["arguments"])
                return ending["result"]

    def _tell(self, kind: int, number: int = 0) -> None:
        told = torch.tensor([kind, number], device=self._device)
        dist.broadcast(told, group=self._group, group_src=0)

    def _bytes(self, data: bytes) -> Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)

    def pulse(self) -> None:
        """Tells the others that the leader still waits; raises PeerLost."""
        if monotonic() >= self._next_pulse:
            self._next_pulse = monotonic() + _PULSE_S
            with reaching():
                self._tell(_WAIT)

    def _gather(self, number: int) -> None:
        parameter = self._parameters[number].detach()
        whole = getattr(parameter, "full_tensor", lambda: parameter)()
        if not self.rank:
            whole = whole.cpu()
            self._wholes[number] = whole, whole._version

    def _scatter(self, number: int) -> None:
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - slow to import

        parameter: Any = self._parameters[number].detach()
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is None:  # it is whole on all
            if not self.rank:
                parameter.copy_(self._wholes[number][0])
            broadcast([parameter], self._group, self._device)
            return
        if self.rank:
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        else:
            whole = self._wholes[number][0]
        parameter.to_local().copy_(distribute_tensor(whole, mesh, parameter.placements).to_local())

    def _share_buffers(self, model: nn.Module) -> None:
        broadcast(buffers_of(model).values(), self._group, self._device)


def _described(problem: Exception) -> dict[str, Any]:
    name, arguments = type(problem).__name__, [str(problem)]
    if isinstance(problem, CompressionError):
        arguments = list(problem._made_by[1])
    elif name not in _ERRORS:
        arguments = [f"{name}: {problem}"]
    return {"error": name, "arguments": arguments}


def require_place(saved: Sequence[int] | None, place: Sequence[int] | None) -> None:
    """Raises ValueError where a state is of another process of an island, or one is not of an island."""
    if saved != place:
        theirs, ours = (
            "a worker that is no island" if at is None else f"process {at[0]} of an island of {at[1]}"
            for at in (saved, place)
        )
        raise ValueError(
            f"the state of {theirs}, this is {ours}: an island goes on in as many processes as it had, each "
            "with its own state"
        )
