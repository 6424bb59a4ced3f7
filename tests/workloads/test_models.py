"""The labs' models with PyTorch on the CPU: size, shapes, what they learn, and PyTorch's count of their operations."""

from typing import Any

import pytest

from perfkit.workloads import MODELS, SIZES, Loader, Plan, flops
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


def test_attention_is_that_of_its_formula(torch: Any) -> None:
    """softmax(Q K^T / sqrt(64)) V per head, written out, gives what the layer gives, to the rounding of FP32."""
    from perfkit.workloads.models import Attention

    torch.manual_seed(0)
    layer, x = Attention(128, 2), torch.randn(1, 5, 128)
    query, key, value = layer.query(x)[0], layer.key(x)[0], layer.value(x)[0]
    heads = [slice(0, 64), slice(64, 128)]
    seen = [torch.softmax(query[:, h] @ key[:, h].T / 64**0.5, dim=1) @ value[:, h] for h in heads]
    assert torch.allclose(layer.out(torch.cat(seen, dim=1)), layer(x)[0], atol=1e-5)


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
    assert [] == [key for key, value in work.model.named_parameters() if torch.equal(value, before[key])]


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


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")])
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
