"""Operations of the models by formula, against published figures; test_models.py counts them with PyTorch."""

from __future__ import annotations

import pytest

from perfkit.workloads import Plan, Size
from perfkit.workloads.flops import attention, convolution, layers, linear, step


def test_mlp_forward_is_that_of_the_lab() -> None:
    """2 * 128 * (784 * 256 + 256 * 128 + 128 * 10) = 2 * 128 * 234,752 = 60,096,512 FLOP."""
    assert 60_096_512 == step(Plan("mlp", mode="inference"), 128)


def test_mlp_training_leaves_out_the_gradient_of_the_images() -> None:
    """3 * 60,096,512 - 2 * 128 * 784 * 256 = 180,289,536 - 51,380,224 = 128,909,312 FLOP."""
    assert 128_909_312 == step(Plan("mlp"), 128)


def test_cnn_forward() -> None:
    """2 * (24 * 24 * 25 + 8 * 8 * 25 + 16 * 100 + 100 * 10) = 2 * 18,600 = 37,200 FLOP."""
    assert 37_200 == step(Plan("cnn", mode="inference"), 1)


def test_resnet_forward_is_as_published() -> None:
    """1.8e9 multiply-adds of an image of 224 x 224 (He et al., table 1); torchvision says 1.814e9."""
    flops = step(Plan("resnet18", mode="inference"), 1)
    assert 1.814 == round(flops / 2e9, 3)


def test_bert_forward_is_two_per_weight_and_token_and_attention() -> None:
    """Two of each of 12 * 7,077,888 weights and token, 12 * 4 * 128^2 * 768, and 2 * 768 * (768 + 2) of the head."""
    expected = 2 * 12 * 7_077_888 * 128 + 12 * 4 * 128**2 * 768 + 2 * 768 * 770
    assert expected == step(Plan("bert", mode="inference"), 1)


def test_bert_trains_at_three_times_forward() -> None:
    """Tokens are looked up, so every product needs both gradients."""
    assert 3 * step(Plan("bert", mode="inference"), 4) == step(Plan("bert"), 4)


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet18", "bert"])
def test_operations_grow_with_the_batch(model: str) -> None:
    """A batch of 6 takes six times the operations of one sample, in every layer."""
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


def test_batch_of_none_is_refused() -> None:
    """A step takes at least one sample."""
    with pytest.raises(ValueError, match="batch: 0 is below 1"):
        step(Plan("mlp"), 0)
