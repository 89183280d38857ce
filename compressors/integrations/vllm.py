"""vLLM: a weight transfer engine that follows a stream of weight patches.

    LLM(place, weight_transfer_config={"backend": "taugrad"})

vLLM finds it by its entry point `vllm.general_plugins`; see docs/how-to/serve-while-training.md. What needs
numba is imported when the engine is initialized: vLLM's CPU worker cannot start behind it.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.parallel_state import get_world_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger

logger = init_logger("vllm.taugrad")

if TYPE_CHECKING:
    from ..patches.engine import EngineReader
    from ..patches.parts import EnginePart


def register() -> None:
    """Makes the backend "taugrad" known to vLLM, in each of its processes."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: PLC0415
    from vllm.v1.worker.worker_base import WorkerBase  # noqa: PLC0415

    if "taugrad" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("taugrad", __name__, "TaugradEngine")
        WorkerBase.served_weights = _served_weights
        _keep_plain_weights()


def _served_weights(worker: Any) -> list[Any] | None:
    """What `/collective_rpc` asks for: number, digest, and up to which number this rank has fetched."""
    reader = getattr(worker.weight_transfer_engine, "reader", None)
    return reader and [reader.number, f"{reader.digest:016x}", reader.fetched]


def _keep_plain_weights() -> None:
    """Has linear layers on CPUs keep their weights, where this backend is used.

    vLLM packs them for oneDNN or AMX, and drops the tensors: then nothing could be changed in place.
    """
    from vllm.config.vllm import get_current_vllm_config_or_none  # noqa: PLC0415
    from vllm.model_executor.layers import utils  # noqa: PLC0415

    packed = utils.dispatch_cpu_unquantized_gemm

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        config = get_current_vllm_config_or_none()
        transfer = config and config.weight_transfer_config
        if transfer and transfer.backend == "taugrad" and layer.weight.ndim == 2 and not layer.weight.is_meta:
            layer.__dict__["cpu_linear"] = torch.nn.functional.linear
        else:
            packed(layer, remove_weight)

    utils.dispatch_cpu_unquantized_gemm = dispatch


@dataclass
class InitInfo(WeightTransferInitInfo):
    """What `/init_weight_transfer_engine` takes."""

    place: str
    """The folder or bucket to which a `PatchWriter` writes."""
    poll_s: float | None = 1.0
    """Seconds from one look for new patches to the next; None: only updates fetch."""
    verify_every: int | None = None
    """After so many updates, the digest of what runs is compared with the stream's; at init it always is."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What `/update_weights` takes."""

    number: int | str = "newest"

    def __post_init__(self) -> None:
        if self.number != "newest" and type(self.number) is not int:
            raise TypeError(f'number must be a whole number or "newest", not {self.number!r}')


class TaugradEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Follows a stream, on each of vLLM's ranks; changes what runs in place, where it changes."""

    init_info_cls, update_info_cls = InitInfo, UpdateInfo
    supports_draft_weight_update = False
    reader: "EngineReader | None" = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Finds where checkpoint tensors lie, and which number of the stream runs.

        Raises:
            EngineRefused: see `map_one_of` and `EngineReader`.
        """
        from ..patches.engine import EngineReader  # noqa: PLC0415
        from ..patches.reload import Reloader  # noqa: PLC0415
        from .loaders import map_one_of  # noqa: PLC0415

        self.shutdown()
        world = get_world_group()

        gather = None if world.world_size == 1 else partial(_all_gather, world.cpu_group)
        with torch.no_grad(), self._raised_by_one_rank():
            orders = dict[int, Any]()

            def reorder(part: "EnginePart") -> "EnginePart | None":
                orders.update(() if orders else _kernel_orders(self.model))
                pointer = part.memory.untyped_storage().data_ptr()
                return part.in_order(*orders[pointer]) if pointer in orders else None

            load, place = self.model.load_weights, init_info.place
            reloader = Reloader(self.model, self._load_whole)
            tensors = map_one_of(load, self._checkpoint, place, gather, reorder, reloader)
            self.reader = EngineReader(
                place,
                tensors,
                reloader=reloader,
                rank=world.rank_in_group,
                gather=gather,
                verify_every=init_info.verify_every,
                poll_s=init_info.poll_s,
            )
        self._log_served()

    @contextmanager
    def _raised_by_one_rank(self) -> Iterator[None]:
        """Leaves it to the last rank to raise what all ranks raise.

        vLLM reads the ranks' replies in order, up to the first error; those behind it would be taken for
        replies to the next call. It ends an update on the rank that raises; `finish_weight_update` ends it on
        the others.
        """
        from ..patches.parts import EngineRefused  # noqa: PLC0415

        try:
            yield
        except EngineRefused as problem:
            world = get_world_group()
            if world.rank_in_group == world.world_size - 1:
                raise
            logger.error("%s", problem)

    def _log_served(self) -> None:
        if self.reader is not None and get_world_group().rank_in_group == 0:
            logger.info("Weights of number %s run, digest %016x", self.reader.number, self.reader.digest)

    def _checkpoint(self) -> Iterable[tuple[str, Tensor]]:
        """What the engine was loaded from, read again by vLLM's own loader."""
        from vllm.model_executor.model_loader import get_model_loader  # noqa: PLC0415

        loader = get_model_loader(self.vllm_config.load_config)
        weights: Iterable[tuple[str, Tensor]] = loader.get_all_weights(self.model_config, self.model)
        return weights

    def _load_whole(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Loads some tensors again, with all that vLLM makes of them."""
        from vllm.config import set_current_vllm_config  # noqa: PLC0415
        from vllm.model_executor.model_loader.reload import layerwise  # noqa: PLC0415

        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)  # it names all layers of which no tensor is loaded
        try:
            with set_current_vllm_config(self.vllm_config), self.device:
                layerwise.initialize_layerwise_reload(self.model)
                self.model.load_weights(weights)
                layerwise.finalize_layerwise_reload(self.model, self.model_config)
        finally:
            logging.disable(disabled)
            for layer in self.model.modules():  # of a load that failed
                layerwise.get_layerwise_info(layer).reset()

    def start_weight_update(self) -> None:
        """Does nothing: an update is one step."""

    def finish_weight_update(self) -> None:
        """Does nothing."""

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Brings what runs to a number.

        Raises:
            EngineRefused: see `EngineReader.update`; what ran before runs.
        """
        from ..patches.parts import EngineRefused  # noqa: PLC0415

        with torch.no_grad(), self._raised_by_one_rank():
            if self.reader is None:
                raise EngineRefused("init_weight_transfer_engine must be called first, with a stream's place")
            self.reader.update(None if update_info.number == "newest" else int(update_info.number))
        self._log_served()

    def shutdown(self) -> None:
        """Ends the thread that fetches."""
        if self.reader is not None:
            self.reader.close()
        self.reader = None


def _all_gather(group: dist.ProcessGroup, data: bytes) -> list[bytes]:
    """Gathers bytes from all ranks of a group for CPUs."""
    ranks = range(dist.get_world_size(group))
    sizes = [torch.empty(1, dtype=torch.int64) for _ in ranks]
    dist.all_gather(sizes, torch.tensor([len(data)]), group=group)
    width = int(max(sizes))
    rows = [torch.empty(width, dtype=torch.uint8) for _ in ranks]
    dist.all_gather(rows, torch.frombuffer(bytearray(data.ljust(width)), dtype=torch.uint8), group=group)
    return [row.numpy().tobytes()[: int(size)] for row, size in zip(rows, sizes, strict=True)]


def _kernel_orders(model: torch.nn.Module) -> dict[int, Any]:
    """Mixtures of experts on CPUs: parameters, and the order that their kernel has made of each expert.

    The kernel's own packing runs over indices, 15 bits at a time.
    """
    orders = dict[int, Any]()
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        isa = getattr(getattr(kernel, "fused_experts", None), "isa", None)
        for name in ("w13_weight", "w2_weight") if isa else ():
            weight: Tensor = getattr(module, name)
            if weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float16):
                orders[weight.untyped_storage().data_ptr()] = weight, _packed_order(weight, str(isa))
    return orders


def _packed_order(weight: Tensor, isa: str) -> Any:
    from vllm._custom_ops import cpu_prepack_moe_weight  # noqa: PLC0415

    index = torch.arange(weight[0].numel())
    source = torch.zeros_like(index)
    for shift in (0, 15):
        digits = (index >> shift & 0x7FFF).to(torch.int16).view(weight.dtype).view(1, *weight.shape[1:])
        source += cpu_prepack_moe_weight(digits, isa).view(torch.int16).flatten().long() << shift
    return torch.argsort(source).numpy()
