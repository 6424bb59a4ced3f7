"""Operations of the models by formula, against published figures; test_models.py counts them with PyTorch."""

import pytest

from perfkit.workloads import Plan, Size
from perfkit.workloads.flops import attention, convolution, layers, linear, step


@pytest.mark.parametrize(
    ("plan", "batch", "expected"),
    [
        (Plan("mlp", mode="inference"), 128, 2 * 128 * (784 * 256 + 256 * 128 + 128 * 10)),  # the lab's 60,096,512
        (Plan("mlp"), 128, 3 * 60_096_512 - 2 * 128 * 784 * 256),  # images need no gradient
        (Plan("cnn", mode="inference"), 1, 2 * (24 * 24 * 25 + 8 * 8 * 25 + 16 * 100 + 100 * 10)),
        # two of each of 12 * 7,077,888 weights and token, 12 * 4 * 128^2 * 768, and 2 * 768 * (768 + 2) of the head
        (Plan("bert", mode="inference"), 1, 2 * 12 * 7_077_888 * 128 + 12 * 4 * 128**2 * 768 + 2 * 768 * 770),
        (Plan("bert"), 4, 3 * step(Plan("bert", mode="inference"), 4)),  # every product needs both gradients
    ],
)
def test_operations_of_a_step(plan: Plan, batch: int, expected: int) -> None:
    assert expected == step(plan, batch)


def test_resnet_forward_is_as_published() -> None:
    """1.8e9 multiply-adds of an image of 224 x 224 (He et al., table 1); torchvision says 1.814e9."""
    assert 1.814 == round(step(Plan("resnet18", mode="inference"), 1) / 2e9, 3)


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet18", "bert"])
def test_operations_grow_with_the_batch(model: str) -> None:
    one, six = layers(Plan(model), 1), layers(Plan(model), 6)
    assert [6 * layer.flops for layer in one] == [layer.flops for layer in six]


def test_odd_images_round_up() -> None:
    """A side of 33 becomes 17 (convolution), 9 (pooling), 5, 3 and 2; 32 becomes 16, 8, 4, 2 and 1."""
    found = {layer.name: layer.flops for layer in layers(Plan("resnet18", size=Size(image=33)), 1)}
    assert convolution(1, 3, 64, kernel=7, side=17) == found["conv1"]
    assert convolution(1, 512, 512, kernel=3, side=2) == found["blocks.7.conv2"]


def test_parts() -> None:
    """2 * 3 * 5 * 7 = 210; 2 * 2 * 4 * 9 * 3 * 25 = 10,800; 4 * 2 * 3^2 * 8 = 576."""
    assert (210, 10_800, 576) == (linear(3, 5, 7), convolution(2, 3, 4, kernel=5, side=3), attention(2, 3, 8))
    with pytest.raises(ValueError, match="batch: 0 is below 1"):
        step(Plan("mlp"), 0)
