import pytest
import torch
from torch import nn

from taugrad.platform.data.shape import Shape
from taugrad.platform.models import build, try_out
from taugrad.platform.models.config import CustomModel, LeNet, Mlp, NetworkInNetwork
from taugrad.platform.own_code import OwnCodeError

torch.set_num_threads(1)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("config", "size", "expected"),
    [
        (LeNet(), (1, 28, 28), 431_080),
        (Mlp(activation="tanh"), (1, 28, 28), 784 * 392 + 392 * 50 + 50 * 10 + 392 + 50 + 10),
        (Mlp(widths=[]), (3, 4, 5), 60 * 10 + 10),
        (NetworkInNetwork(), (3, 32, 32), 966_986),
    ],
)
def test_the_papers_networks_have_their_number_of_parameters(config, size, expected):
    channels, height, width = size
    model = build(config, Shape.image(channels, height, width, 10))
    assert parameters(model) == expected


def test_a_narrow_network_in_network_keeps_at_least_one_map():
    half = build(NetworkInNetwork(width_multiplier=0.5), Shape.image(3, 32, 32, 7))
    maps = [layer.out_channels for layer in half.modules() if isinstance(layer, nn.Conv2d)]
    assert maps == [96, 80, 48, 96, 96, 96, 96, 96, 7]
    least = build(NetworkInNetwork(width_multiplier=1e-6), Shape.image(3, 32, 32, 7))
    maps = [layer.out_channels for layer in least.modules() if isinstance(layer, nn.Conv2d)]
    assert maps == [1, 1, 1, 1, 1, 1, 1, 1, 7]


def test_network_in_network_pools_as_caffe_does():
    # Caffe rounds up: 32 -> 16 -> 8; rounding down would give 15 and 7.
    model = build(NetworkInNetwork(width_multiplier=0.02), Shape.image(3, 32, 32, 10))
    sizes = []
    for name in ("pool1", "pool2"):
        model.get_submodule(name).register_forward_hook(lambda *call: sizes.append(call[2].shape[-1]))
    model(torch.zeros(1, 3, 32, 32))
    assert sizes == [16, 8]


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (LeNet(), (1, 16, 16)),
        (LeNet(), (3, 17, 31)),
        (LeNet(), (3, 32, 20)),
        (Mlp(), (2, 1, 3)),
        (NetworkInNetwork(width_multiplier=0.1), (1, 4, 4)),
        (NetworkInNetwork(width_multiplier=0.1), (1, 8, 8)),
        (NetworkInNetwork(width_multiplier=0.1), (3, 11, 9)),
    ],
)
def test_images_become_class_scores(config, size):
    channels, height, width = size
    model = build(config, Shape.image(channels, height, width, 6))
    scores = model(torch.randn(3, *size))
    assert scores.shape == (3, 6)
    assert scores.dtype == torch.float32
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize(
    ("config", "height", "width", "smallest"),
    [
        (NetworkInNetwork(), 3, 8, "4 x 4"),
        (NetworkInNetwork(), 8, 3, "4 x 4"),
    ],
)
def test_images_that_are_too_small_are_refused_with_the_smallest_size(config, height, width, smallest):
    with pytest.raises(ValueError, match=rf"{height} x {width} are too small .* at least {smallest}"):
        build(config, Shape.image(1, height, width, 10))


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


def test_he_weights_keep_the_signal_through_nine_layers():
    torch.manual_seed(0)
    model = build(NetworkInNetwork(dropout=0), Shape.image(3, 16, 16, 10))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 5000:
            fan_in = layer.weight[0].numel()
            assert layer.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.05)
            assert not layer.bias.any()
    assert 0.1 < model(torch.randn(8, 3, 16, 16)).std().item() < 10


def test_lenet_begins_as_caffe_fills_it():
    torch.manual_seed(0)
    model = build(LeNet(), Shape.image(1, 28, 28, 10))
    for name, fan_in in (("conv2", 500), ("fc1", 800), ("fc2", 500)):
        layer = model.get_submodule(name)
        assert layer.weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.05)
        assert layer.weight.abs().max().item() <= (3 / fan_in) ** 0.5
        assert not layer.bias.any()


@pytest.mark.parametrize(("height", "width"), [(8, 8), (3, 20), (15, 16)])
def test_lenet_surrounds_small_images_with_zeros(height: int, width: int) -> None:
    torch.manual_seed(0)
    model = build(LeNet(), Shape.image(1, height, width, 10))
    torch.manual_seed(0)
    large = build(LeNet(), Shape.image(1, max(height, 16), max(width, 16), 10))
    images = torch.randn(4, 1, height, width)
    around = torch.zeros(4, 1, max(height, 16), max(width, 16))
    top, left = (around.shape[2] - height) // 2, (around.shape[3] - width) // 2
    around[:, :, top : top + height, left : left + width] = images
    assert torch.equal(model(images), large(around))


def test_dropout_is_the_configs_and_stops_in_evaluation():
    model = build(NetworkInNetwork(dropout=0.25, width_multiplier=0.1), Shape.image(1, 8, 8, 3))
    assert [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] == [0.25, 0.25]
    images = torch.randn(4, 1, 8, 8)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


@pytest.mark.parametrize(
    "config",
    [LeNet(), Mlp(), Mlp(activation="tanh"), NetworkInNetwork(width_multiplier=0.2, dropout=0)],
    ids=["lenet", "mlp", "mlp-tanh", "nin"],
)
def test_training_lowers_the_loss_on_a_fixed_batch_and_reaches_every_parameter(config):
    torch.manual_seed(0)
    model = build(config, Shape.image(1, 16, 16, 4))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    images, labels = torch.randn(16, 1, 16, 16), torch.arange(16) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert losses[-1] < losses[1]
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name


def test_weights_follow_torchs_seed():
    def first_weights(seed):
        torch.manual_seed(seed)
        model = build(LeNet(), Shape.image(1, 16, 16, 10))
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(first_weights(1), first_weights(1))
    assert not torch.equal(first_weights(1), first_weights(2))


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
        ("make", {"hiden": 4}, "make(channels, height, width, classes, hidden=2) cannot be called with"),
        ("make", {"hidden": "a"}, "hidden='a' it raised TypeError: "),
    ],
)
def test_a_custom_factory_that_makes_no_network_is_refused(user_module, function, arguments, said):
    config = CustomModel(factory=f"{user_module}:{function}", arguments=arguments)
    with pytest.raises(OwnCodeError) as refused:
        build(config, Shape.image(1, 2, 2, 2))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (nn.Linear(3, 2), "called with images of shape [2, 1, 4, 4], raised RuntimeError: "),
        (nn.Flatten(), "no parameter that is trained"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
            "returned [2, 3]; expected scores of shape [2, 5]",
        ),
        (nn.Linear(4, 5).requires_grad_(False), "no parameter that is trained"),
    ],
)
def test_a_users_network_is_tried_before_workers_start(network, said):
    own, images = CustomModel(factory="mine:net"), torch.zeros(2, 1, 4, 4)
    with pytest.raises(OwnCodeError, match="mine:net") as refused:
        try_out(own, network, images, Shape.image(1, 4, 4, 5))
    assert said in str(refused.value)
    fitting = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 5))
    before = {name: value.clone() for name, value in fitting.state_dict().items()}
    try_out(own, fitting, images, Shape.image(1, 4, 4, 5))
    assert fitting.training
    assert all(torch.equal(value, before[name]) for name, value in fitting.state_dict().items())
