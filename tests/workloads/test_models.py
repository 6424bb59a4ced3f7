"""The labs' models with PyTorch on the CPU: size, shapes, what they learn; their operations by formula and counted."""

from typing import Any

import pytest

from perfkit.workloads import MODELS, SIZES, Loader, Plan, Size, flops
from perfkit.workloads.flops import attention, convolution, layers, linear, step
from perfkit.workloads.running import CLASSES, batches, model, workload

BATCH = 4


def small(name: str, **options: Any) -> Plan:
    return Plan(name, **{"size": SIZES["small"], "loader": Loader(resident=True), **options})


def batch_of(torch: Any, plan: Plan, count: int = BATCH) -> Any:
    return next(batches(torch, plan, count))


def parameters(module: Any) -> int:
    return sum(each.numel() for each in module.parameters())


def test_parameters(torch: Any) -> None:
    """MLP: 785*256 + 257*128 + 129*10; CNN: 26 + 26 + 1,700 + 1,010; ResNet-18 as torchvision says.

    BERT-base, uncased, with its pooler has the 109,482,240 of the published model; the head adds 768 * 2 + 2.
    """
    with torch.device("meta"):
        nets = {name: model(Plan(name)) for name in MODELS}
    counts = {"mlp": 235_146, "cnn": 2_762, "resnet18": 11_689_512, "bert": 109_483_778}
    assert counts == {name: parameters(net) for name, net in nets.items()}
    assert 109_482_240 == parameters(nets["bert"].bert)


@pytest.mark.parametrize("name", MODELS)
def test_logits_have_a_row_per_sample(torch: Any, name: str) -> None:
    """Logits are finite, one per class, and no probabilities: rows do not sum to 1, and some are below 0.

    The ReLU of the lab's listing made those of the MLP 0. Images are floats from -1 to 1, tokens whole numbers below
    the vocabulary, labels below the number of classes.
    """
    plan = small(name, mode="inference")
    inputs, labels = batch_of(torch, plan)
    low, high = (0, 999) if name == "bert" else (-1, 1)
    assert (torch.int64 if name == "bert" else torch.float32) == inputs.dtype
    assert low <= inputs.min()
    assert inputs.max() <= high
    assert labels.max() < CLASSES[name]
    logits = workload(torch, plan).step((inputs, labels))
    assert (BATCH, CLASSES[name]) == tuple(logits.shape)
    assert torch.isfinite(logits).all()
    assert not torch.allclose(logits.sum(dim=1), torch.ones(BATCH))
    assert name != "mlp" or (logits < 0).any()


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_lowers_the_loss_of_its_batch(torch: Any, name: str) -> None:
    """After one step the loss of the same samples is lower; dropout is off, because it makes the loss random.

    Two training steps change every tensor of weights and biases.
    """
    plan = small(name)
    batch, work = batch_of(torch, plan), workload(torch, plan)
    for part in work.model.modules():
        part.p = 0.0 if isinstance(part, torch.nn.Dropout) else getattr(part, "p", None)
    before = {key: value.clone() for key, value in work.model.named_parameters()}
    first = work.step(batch)
    assert work.step(batch) < first
    assert [] == [
        key for key, value in work.model.named_parameters() if torch.equal(value, before[key])
    ]


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_that_pytorch_counts(torch: Any, name: str, mode: str) -> None:
    """PyTorch's FlopCounterMode counts what the formula says, to the last operation.

    It knows no operations of the CPU's fused attention, so attention is computed as two products here.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    plan = small(name, mode=mode)
    batch, work = batch_of(torch, plan), workload(torch, plan)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        work.step(batch)
    assert flops.step(plan, BATCH) == counted.get_total_flops()


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")]
)
def test_precision_is_that_of_the_products(torch: Any, precision: str, dtype: str) -> None:
    """Autocast computes the logits in the precision; the weights stay FP32."""
    plan = small("mlp", mode="inference", precision=precision)
    work = workload(torch, plan)
    assert getattr(torch, dtype) == work.step(batch_of(torch, plan)).dtype
    assert {torch.float32} == {each.dtype for each in work.model.parameters()}


def test_the_loss_is_read_every_so_many_steps(torch: Any) -> None:
    """With 3, the third and sixth step return a number, and the others leave the loss on the device."""
    batch = batch_of(torch, small("mlp"))
    steps = [workload(torch, small("mlp", read_loss=every)).step for every in (0, 3)]
    left, read = ([step(batch) for _ in range(6)] for step in steps)
    assert [False, False, True] * 2 == [isinstance(loss, float) for loss in read]
    assert [float(loss) for loss in left] == [float(loss) for loss in read]


@pytest.mark.parametrize(
    ("plan", "batch", "expected"),
    [
        (
            Plan("mlp", mode="inference"),
            128,
            2 * 128 * (784 * 256 + 256 * 128 + 128 * 10),
        ),  # the lab's 60,096,512
        (Plan("mlp"), 128, 3 * 60_096_512 - 2 * 128 * 784 * 256),  # images need no gradient
        (Plan("cnn", mode="inference"), 1, 2 * (24 * 24 * 25 + 8 * 8 * 25 + 16 * 100 + 100 * 10)),
        # two of each of 12 * 7,077,888 weights and token, 12 * 4 * 128^2 * 768, and 2 * 768 * (768 + 2) of the head
        (
            Plan("bert", mode="inference"),
            1,
            2 * 12 * 7_077_888 * 128 + 12 * 4 * 128**2 * 768 + 2 * 768 * 770,
        ),
        (
            Plan("bert"),
            4,
            3 * step(Plan("bert", mode="inference"), 4),
        ),  # every product needs both gradients
    ],
)
def test_operations_of_a_step(plan: Plan, batch: int, expected: int) -> None:
    assert expected == step(plan, batch)


def test_resnet_forward_is_as_published() -> None:
    """1.8e9 multiply-adds of an image of 224 x 224 (He et al., table 1); torchvision says 1.814e9."""
    assert 1.814 == round(step(Plan("resnet18", mode="inference"), 1) / 2e9, 3)


def test_odd_images_round_up() -> None:
    """A side of 33 becomes 17 (convolution), 9 (pooling), 5, 3 and 2; 32 becomes 16, 8, 4, 2 and 1."""
    found = {layer.name: layer.flops for layer in layers(Plan("resnet18", size=Size(image=33)), 1)}
    assert convolution(1, 3, 64, kernel=7, side=17) == found["conv1"]
    assert convolution(1, 512, 512, kernel=3, side=2) == found["blocks.7.conv2"]


def test_parts() -> None:
    """2 * 3 * 5 * 7 = 210; 2 * 2 * 4 * 9 * 3 * 25 = 10,800; 4 * 2 * 3^2 * 8 = 576."""
    assert (210, 10_800, 576) == (
        linear(3, 5, 7),
        convolution(2, 3, 4, kernel=5, side=3),
        attention(2, 3, 8),
    )
    with pytest.raises(ValueError, match="batch: 0 is below 1"):
        step(Plan("mlp"), 0)
