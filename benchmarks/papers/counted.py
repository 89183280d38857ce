"""What papers claim of sizes, errors and equalities, counted on real gradients and weights."""

import zlib
from collections.abc import Mapping
from time import thread_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.methods import CompressedMethod, read_config
from taugrad.compressors.methods.entropy import fixed_entropy
from taugrad.compressors.ops import ops_for
from taugrad.compressors.wire.message import NonFinite
from taugrad.compressors.wire.update import Update
from taugrad.platform.data.batch_plan import Position, adabatch_size
from taugrad.platform.models.convnets import nin
from taugrad.platform.replica.rates import rate_at
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.models import NetworkInNetwork
from taugrad.platform.spec.training import AdaBatch, TrainingConfig
from taugrad.platform.tracking import names
from taugrad.platform.training.trainer import Trainer

from ..compress.gradients import entropy_bits
from ..harness.in_process import trained
from . import anoosheh, oland_raj

Values = Mapping[str, float]
BLOCK = 2048


def digits(seed: int, compressor: str = "none", epochs: int = 4, **changed: Any) -> RunSpec:
    """Caffe's LeNet on the small digits, otherwise as the benchmark of Anoosheh's paper trains."""
    spec = anoosheh.spec_of(compressor, seed, epochs, 1).model_dump(mode="json")
    return RunSpec.model_validate(spec | {"model": {"kind": "lenet"}, "data": {"kind": "digits"}} | changed)


def loss_of(spec: RunSpec) -> float:
    """The test loss after a training."""
    return trained(spec).last[names.EVAL_LOSS]


def gradients(trainer: Trainer, rows: Any) -> list[Tensor]:
    """The gradients of a trained model's parameters for some training examples, flat."""
    trainer.model.zero_grad()
    inputs, targets = trainer.data.train.batch(np.asarray(rows), None)
    loss = trainer.task.loss(trainer.model(inputs), targets)
    return [gradient.flatten() for gradient in torch.autograd.grad(loss, list(trainer.model.parameters()))]


def compressed(line: str, tensors: list[Tensor]) -> tuple[int, list[Tensor], list[Update]]:
    """A message's bytes, what error feedback keeps, and what the message says."""
    method = read_config(line)
    assert isinstance(method, CompressedMethod)
    shard = Shard.whole({str(i): tensor.numel() for i, tensor in enumerate(tensors)})
    compressor = Compressor(method, Worker(ops_for(torch.device("cpu"), 1)), shard)
    payload = compressor.compress([tensor.clone() for tensor in tensors], 0).payload
    updates = compressor.read(payload)
    kept = [compressor.feedback.residuals[name] for name in shard.names]
    assert not isinstance(updates, NonFinite)
    return payload.size, kept, list(updates)


def nodes_are_a_batch(seed: int) -> Values:
    """8 workers of 4 examples beside one of 32, after an epoch: the test losses' relative difference."""
    many, one = (loss_of(digits(seed, epochs=1, training=_plain(1), workers={"count": n})) for n in (8, 1))
    return {"difference": abs(many / one - 1)}


def schemes_are_sgd(seed: int) -> Values:
    """Hybrid schemes of 4 workers beside one worker: relative differences of test losses after an epoch."""
    one = loss_of(digits(seed, epochs=1, training=_plain(1), workers={"count": 1}))
    return {scheme: abs(loss_of(_hybrid(seed, 1, scheme=scheme)) / one - 1) for scheme in "abc"}


def variable_batch(seed: int) -> Values:
    """Points of accuracy that fully connected layers gain from K steps in place of one, and the loss."""
    scaling = {"kind": "linear", "reference": 8}
    joined, own = (
        _accuracy(_hybrid(seed, 4, scheme="c", fc_batch=batch), scaling) for batch in ("joined", "per_worker")
    )
    return {"joined": joined, "per_worker": own}


def _accuracy(spec: RunSpec, scaling: Mapping[str, Any]) -> float:
    changed = spec.model_dump(mode="json")
    changed["training"] |= {"scaling": scaling}
    return 100 * trained(RunSpec.model_validate(changed)).last[names.EVAL_ACCURACY]


def _plain(epochs: int) -> dict[str, Any]:
    optimizer = {"kind": "sgd", "lr": 0.01, "momentum": 0, "weight_decay": 5e-4}
    return {"epochs": epochs, "batch_size": 32, "optimizer": optimizer}


def _hybrid(seed: int, epochs: int, **mode: str) -> RunSpec:
    sync = {"mode": "simulated", "of": {"mode": "hybrid", **mode}}
    return digits(seed, training=_plain(epochs), sync=sync, workers={"count": 4})


def decay(_: None) -> Values:
    """What a step of 8 times the batch decays weights by, over what 8 steps do: real steps without gradient.

    `scaled`: with the decay of `training.scaling`, sqrt(k); `unchanged`: with the decay itself.
    """
    shrunk = {}
    for name, steps, scale in (("eight", 8, 1.0), ("unchanged", 1, 8**0.5), ("scaled", 1, 8**0.5)):
        spec = TrainingConfig.model_validate(_plain(1) | {"scaling": {"kind": "sqrt", "reference": 4}})
        plain = spec.optimizer.weight_decay
        at = rate_at(spec, Position(0, 0, 1, 0, 32), 1)
        weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
        weight.grad = torch.zeros_like(weight)
        lr = scale * spec.optimizer.lr
        sgd = torch.optim.SGD([weight], lr=lr, weight_decay=at.weight_decay if name == "scaled" else plain)
        for _step in range(steps):
            sgd.step()
        shrunk[name] = 1 - float(weight)
    return {name: shrunk[name] / shrunk["eight"] for name in ("scaled", "unchanged")}


def time_of_thresholds(seed: int) -> Values:
    """Percent of the time of a forward and backward pass of 16 images that WGT's pass and message take."""
    torch.manual_seed(seed)
    model = _network_in_network()
    images, labels = torch.randn(16, 3, 224, 224), torch.randint(1000, (16,))
    begun = thread_time()
    nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    computing = thread_time() - begun
    found = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    line = f"wgt({float(torch.cat(found).abs().quantile(0.99))})"
    compressed(line, found)
    begun = thread_time()
    compressed(line, found)
    return {"time": 100 * (thread_time() - begun) / computing}


def memory_of_thresholds(_: None) -> Values:
    """Bytes of gradients and what error feedback keeps, over those of gradients."""
    found = [torch.ones(parameter.numel()) for parameter in _network_in_network().parameters()]
    sizes = [
        sum(tensor.nbytes for tensor in tensors) for tensors in (found, compressed("wgt(0.5)", found)[1])
    ]
    return {"times": sum(sizes) / sizes[0]}


def _network_in_network() -> nn.Sequential:
    """Anoosheh's network, section 2.2."""
    return nin(NetworkInNetwork(form="imagenet", bias=False), 3, 224, 224, 1000)


def populations(seed: int) -> Values:
    """Bins of equal population beside bins of equal width, 8 bits: errors on LeNet's gradients, and bytes."""
    trainer = trained(digits(seed, epochs=1)).trainer
    found = gradients(trainer, range(32))
    errors, sizes = {}, {}
    for line in ("linear", "quantile"):
        sizes[line], kept, _ = compressed(f"{line}(bits=8, block={BLOCK}) | raw", found)
        pairs = [(k, g) for k, g in zip(kept, found, strict=True) if len(g) >= BLOCK]
        relative = torch.cat([(k / g).abs()[g != 0] for k, g in pairs])
        errors[line] = float(sum(k.square().sum() for k, _ in pairs)), float(relative.median())
    squared, median = (errors["quantile"][i] / errors["linear"][i] for i in (0, 1))
    return {"squared": squared, "median relative": median}


def table(_: None) -> Values:
    """Bytes that bins of equal population add to a block."""
    values, blocks = torch.randn(64 * BLOCK, generator=torch.Generator().manual_seed(1)), 64
    return {
        "bytes": (compressed(f"quantile(bits=8, block={BLOCK}) | raw", [values])[0] - len(values)) / blocks
    }


def outlier(seed: int) -> Values:
    """The squared error with one value of 7 among N(0.1, 0.55), over that without, in blocks and as a whole.

    The value's own block is counted, the value is not.
    """
    clean = 0.1 + 0.55 * torch.randn(64 * BLOCK, generator=torch.Generator().manual_seed(seed))
    dirty = torch.cat([torch.tensor([7.0]), clean[1:]])
    result = {}
    for name, block in (("blocks", BLOCK), ("whole", 0)):
        line = f"linear(bits=8, block={block})"
        errors = [float(compressed(line, [some])[1][0][1:].square().sum()) for some in (dirty, clean)]
        result[name] = errors[0] / errors[1]
    return result


def batch_growth(_: None) -> Values:
    """Rae's AdaBatch at half and at a quarter of the first error: times the first batch."""
    growths = {form: AdaBatch(form=form, most=1 << 20) for form in ("formula", "text")}
    return {
        f"{form}, {name}": adabatch_size(growth, 1, 1.0, error)
        for form, growth in growths.items()
        for name, error in (("half", 0.5), ("quarter", 0.25))
    }


def merged(seed: int) -> Values:
    """Messages of 8 workers, merged into one, over the same ones by themselves: in updates and in bits.

    Steps of LeNet's gradients at fixed weights, plus or minus a tau that 1% of the first gradients reach.
    """
    trainer = trained(digits(seed, epochs=1)).trainer
    rng, single, union = np.random.default_rng(seed), np.zeros(2), np.zeros(2)
    kept, tau = [torch.zeros(sum(p.numel() for p in trainer.model.parameters()))] * 8, 0.0
    for _step in range(20):
        rows = rng.choice(len(trainer.data.train), (8, 4))
        kept = [old + torch.cat(gradients(trainer, own)) for old, own in zip(kept, rows, strict=True)]
        if not tau:
            magnitudes = torch.cat(kept).abs().sort().values
            tau = float(magnitudes[int(0.99 * len(magnitudes))])
        sent = [tau * ((value > tau).float() - (value < -tau).float()) for value in kept]
        kept = [value - update for value, update in zip(kept, sent, strict=True)]
        single += np.sum([_positions(update) for update in sent], axis=0)
        union += _positions(torch.stack(sent).sum(0))
    updates, bits = (union / single).tolist()
    return {"updates": updates, "bits": bits}


def _positions(update: Tensor) -> tuple[int, float]:
    count = int(update.count_nonzero())
    return count, count + entropy_bits(np.array([count, len(update) - count]))


def bits_at(_: None) -> Values:
    """Bits an update of coded gaps, signs and headers included, by density in percent."""
    values, result = torch.randn(1 << 22, generator=torch.Generator().manual_seed(1)), {}
    for density in (2, 1, 0.54, 0.27, 0.1):
        tau = float(values.abs().sort().values[int((1 - density / 100) * len(values))])
        size, _, updates = compressed(f"strom({tau}) | golomb_rice", [values])
        result[f"{density:g}%"] = 8 * size / sum(update.k for update in updates)
    return result


def weights(seed: int) -> Values:
    """Oland and Raj's network after 20 epochs with their l1: what codes do to its weights.

    `zlib`: percent of the bytes that are left. `M + 1`: bits that one more bit of M adds to the entropy, the
    mean of the layers. `code books`: percent of a message with c = 5 that is not symbols at their entropy.
    """
    trainer = trained(oland_raj.spec_of("none", seed, 20, oland_raj.PENALTY)).trainer
    layers = [layer.detach().flatten() for layer in trainer.model.parameters() if layer.ndim > 1]
    plain = b"".join(layer.numpy().tobytes() for layer in layers)
    five, four = ([_entropy(layer, bits) for layer in layers] for bits in (5, 4))
    size, _, updates = compressed("entropy(floor=5) | huffman", layers)
    symbols = sum(
        entropy_bits(np.bincount(part))
        for update in updates
        for part in np.split(np.asarray(update.values), np.cumsum(update.counts)[:-1])
    )
    return {
        "zlib": 100 * len(zlib.compress(plain, 9)) / len(plain),
        "M + 1": float(np.mean(np.subtract(five, four))),
        "code books": 100 * (1 - symbols / (8 * size)),
    }


def _entropy(layer: Tensor, bits: int) -> float:
    counts = torch.histc(layer, 2**bits, float(layer.min()), float(layer.max()))
    return fixed_entropy(counts.long().numpy()) / 2**32
