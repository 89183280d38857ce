import inspect
import sys
import types

import pytest
import torch
from cases import in_turn
from feeds import refused
from torch import nn

from taugrad.platform.data.shape import Shape
from taugrad.platform.models.building import build, try_out
from taugrad.platform.spec.models import (
    AlexNet,
    CustomModel,
    Gpt,
    LeNet,
    Mlp,
    NetworkInNetwork,
    ResNet,
    SigmoidStack,
    Timm,
    Vgg16,
)
from taugrad.platform.user_code import UserCodeError

torch.set_num_threads(1)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


MNIST, CIFAR, IMAGENET = (
    Shape.image(1, 28, 28, 10),
    Shape.image(3, 32, 32, 10),
    Shape.image(3, 224, 224, 1000),
)
ALEXNET = 4096 + 4096 * 4097 + 4097 * 10
PARAMETERS = [
    (LeNet(), MNIST, 431_080),
    (Mlp(activation="tanh"), MNIST, 784 * 392 + 392 * 50 + 50 * 10 + 392 + 50 + 10),
    (Mlp(widths=[]), Shape.image(3, 4, 5, 10), 60 * 10 + 10),
    (NetworkInNetwork(), CIFAR, 966_986),
    (AlexNet(), CIFAR, 2_251_584 + 1024 * 4096 + ALEXNET),
    (AlexNet(), MNIST, 2_250_432 + 256 * 4096 + ALEXNET),
    (ResNet(depth=18), CIFAR, 11_173_962),
    # The paper's convolutions, two numbers a map for batch norm, and one layer.
    (Vgg16(), CIFAR, 14_714_688 + 2 * 4224 + 513 * 10),
    # Anoosheh, section 4: 60,719,360 gradients of 8 nodes, which are weights alone.
    (NetworkInNetwork(form="imagenet", bias=False), IMAGENET, 60_719_360 // 8),
    (NetworkInNetwork(form="imagenet"), IMAGENET, 60_719_360 // 8 + 3 * (96 + 256 + 384) + 2 * 1024 + 1000),
    # "60 million parameters" in the paper; this is Caffe's count of it.
    (AlexNet(form="imagenet"), Shape.image(3, 227, 227, 1000), 60_965_224),
    (AlexNet(form="imagenet"), IMAGENET, 60_965_224),
    (AlexNet(form="imagenet", grouped=False), IMAGENET, 62_378_344),
    # Simonyan and Zisserman's table 2 says 138 million.
    (Vgg16(form="imagenet"), IMAGENET, 138_357_544),
    # Issue 16's probe: bytes, context 64. Then GPT-2.
    (Gpt(bias=True, tied=False), Shape.text(64, 256), 867_072),
    (Gpt(layers=12, heads=12, width=768, bias=True), Shape.text(1024, 50257), 124_439_808),
    # He et al., table 6, in millions.
    *(
        (ResNet(depth=depth), CIFAR, pytest.approx(millions * 1e6, abs=5e3 if millions < 1 else 5e4))
        for depth, millions in ((20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7))
    ),
    # Strom, table 4, in millions; the paper gives neither widths nor outputs, see docs/models.md.
    *(
        (
            SigmoidStack(depth=depth, width=width),
            Shape((17, 20), 3020),
            pytest.approx(millions * 1e6, abs=5e4),
        )
        for depth, width, millions in ((5, 1536, 14.6), (8, 1536, 21.7), (5, 2048, 23.7))
    ),
]


@in_turn("config, shape, expected", PARAMETERS)
def test_networks_have_the_papers_number_of_parameters(config, shape, expected):
    with torch.device("meta"):
        assert parameters(build(config, shape)) == expected


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_gpt_is_its_formula(bias, tied):
    torch.manual_seed(0)
    config = Gpt(layers=2, heads=3, width=12, bias=bias, tied=tied)
    model = build(config, Shape.text(7, 11)).double()
    for parameter in model.parameters():  # zeros and ones would hide what is left out
        nn.init.normal_(parameter, std=0.5)
    tokens = torch.randint(11, (3, 5))
    torch.testing.assert_close(model(tokens), plain_gpt(dict(model.state_dict()), config, tokens))


def plain_gpt(weights, config, tokens_NT):
    """The formulas of GPT-2, with every matrix of attention as a whole."""
    (texts, length), size = tokens_NT.shape, config.width // config.heads

    def linear(name, x):
        return nn.functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(name, x):
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        return y * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)

    stream = weights["tokens.weight"][tokens_NT] + weights["positions.weight"][:length]
    for at in (f"blocks.{number}" for number in range(config.layers)):
        qkv = linear(f"{at}.attention.qkv", norm(f"{at}.norm1", stream))
        q, k, v = qkv.view(texts, length, 3, config.heads, size).permute(2, 0, 3, 1, 4)
        match = (q @ k.mT / size**0.5).exp().tril()  # nobody looks ahead
        mixed = match / match.sum(-1, keepdim=True) @ v
        stream = stream + linear(f"{at}.attention.out", mixed.transpose(1, 2).flatten(2))
        z = linear(f"{at}.mlp.fc", norm(f"{at}.norm2", stream))
        stream = stream + linear(f"{at}.mlp.out", z * (1 + torch.erf(z / 2**0.5)) / 2)
    return linear("head", norm("norm", stream))


@pytest.mark.parametrize(
    ("activation", "function"),
    [("relu", torch.relu), ("tanh", torch.tanh), ("sigmoid", torch.sigmoid), ("gelu", nn.functional.gelu)],
)
def test_an_mlp_is_its_matrices_and_its_activation(activation, function):
    model = build(Mlp(widths=[5, 4], activation=activation), Shape.image(2, 3, 1, 3))
    images = torch.randn(7, 2, 3, 1)
    w1, b1, w2, b2, w3, b3 = model.parameters()
    hidden = function(function(images.reshape(7, 6) @ w1.T + b1) @ w2.T + b2)
    torch.testing.assert_close(model(images), hidden @ w3.T + b3)
    every = build(Mlp(widths=[5, 4], activation=activation, activate_outputs=True), Shape.image(2, 3, 1, 3))
    every.load_state_dict(model.state_dict())
    torch.testing.assert_close(every(images), function(hidden @ w3.T + b3))


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "taugrad_user_models.py").write_text(
        "from torch import nn\n"
        "def make(channels, height, width, classes, hidden=2):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, hidden),\n"
        "                         nn.Linear(hidden, classes))\n"
        "def function(**sizes): return lambda x: x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "taugrad_user_models"


def test_a_custom_model_gets_the_sizes_and_its_arguments(user_module):
    config = CustomModel(factory=f"{user_module}:make", arguments={"hidden": 3})
    model = build(config, Shape.image(2, 4, 5, 6))
    assert parameters(model) == 40 * 3 + 3 + 3 * 6 + 6


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        ("function", {}, "of type function; a model's factory takes channels, height, width, classes"),
        ("make", {"classes": 3, "hidden": 4}, "model.arguments has classes; these come from the data"),
    ],
)
def test_a_custom_factory_that_makes_no_network_is_refused(user_module, function, arguments, said):
    config = CustomModel(factory=f"{user_module}:{function}", arguments=arguments)
    with refused(said, error=UserCodeError):
        build(config, Shape.image(1, 2, 2, 2))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (nn.Linear(3, 2), "called with images of shape [2, 1, 4, 4], raised RuntimeError: "),
        (nn.Flatten(), "no parameter that is trained"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), "returned [2, 3]; expected scores of shape [2, 5]"),
        (nn.Linear(4, 5).requires_grad_(False), "no parameter that is trained"),
    ],
)
def test_a_users_network_is_tried_before_workers_start(network, said):
    config, images = CustomModel(factory="mine:net"), torch.zeros(2, 1, 4, 4)
    shape = Shape.image(1, 4, 4, 5)
    with refused(said, match="mine:net", error=UserCodeError):
        try_out(config, network, images, shape)
    fitting = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 5))
    before = {name: value.clone() for name, value in fitting.state_dict().items()}
    try_out(config, fitting, images, shape)
    assert fitting.training
    assert all(torch.equal(value, before[name]) for name, value in fitting.state_dict().items())


@pytest.fixture
def fake_timm(monkeypatch):
    """A module that answers as timm does: torchvision, which timm needs, has no CPU build here."""
    module = types.ModuleType("timm")
    module.calls = []

    def create_model(model_name, pretrained=False, in_chans=3, num_classes=1000, wide=1):
        module.calls.append(inspect.getargvalues(inspect.currentframe()).locals)
        if wide < 1:
            raise TypeError("wide must be 1 at least")
        pool = [] if model_name == "tiny_flat" else [nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*pool, nn.Flatten(), nn.Linear(in_chans * wide, num_classes))

    module.create_model = create_model
    module.list_models = lambda: ["tiny_pool", "tiny_flat"]
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def test_a_timm_network_is_made_for_the_data_and_without_download(fake_timm):
    model = build(Timm(name="tiny_pool.a1_in1k"), Shape.image(3, 9, 8, 6))
    assert model(torch.zeros(2, 3, 9, 8)).shape == (2, 6)
    assert model.training
    asked = fake_timm.calls[0]
    assert (asked["model_name"], asked["pretrained"]) == ("tiny_pool.a1_in1k", False)
    assert (asked["in_chans"], asked["num_classes"]) == (3, 6)
    with pytest.raises(ValueError, match="pretrained=False"):
        build(Timm(name="tiny_pool", arguments={"pretrained": True, "wide": 0}), Shape.image(3, 9, 8, 6))
    assert not any(call["pretrained"] for call in fake_timm.calls)
