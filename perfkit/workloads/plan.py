"""What is run and how: the model and its size, the device, the precision, and where its data come from.

Functions
---------
Plan     all of it; it refuses what cannot be run
Loader   how PyTorch's DataLoader brings the batches
Size     how large the images or sequences and BERT are
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

MODELS = ("mlp", "cnn", "resnet18", "bert")
MODES = ("train", "inference")
DEVICES = ("cpu", "cuda")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
WARM_UP = MappingProxyType({"cuda": 50, "cpu": 5})  # steps; on a GPU until its clocks are steady
TRACED = 5  # steps that the trace of a recording holds


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}: {value} is below {least}")


@dataclass(frozen=True)
class Size:
    """Size of a workload: side of ResNet's images in pixels, length of BERT's sequences in tokens, and BERT itself.

    MLP and CNN have none: their images are 28 x 28.
    """

    image: int = 224
    sequence: int = 128
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 30522

    def __post_init__(self) -> None:
        """Refuse what the models do not take."""
        for name in ("layers", "hidden", "heads", "vocabulary"):
            _at_least(name, getattr(self, name), 1)
        _at_least("image", self.image, 32)
        if not 1 <= self.sequence <= 512:
            raise ValueError(f"sequence: {self.sequence} tokens; BERT takes 1 to 512")
        if self.hidden % self.heads:
            raise ValueError(f"hidden: {self.hidden} is no multiple of {self.heads} heads")


SIZES = MappingProxyType(
    {
        "full": Size(),
        "small": Size(image=64, sequence=32, layers=2, hidden=128, heads=2, vocabulary=1000),
    }
)


@dataclass(frozen=True)
class Loader:
    """How the batches come: through PyTorch's DataLoader, or one `resident` batch that stays on the device.

    `workers`, `pin_memory`, `prefetch` and `persistent` are the DataLoader's num_workers, pin_memory, prefetch_factor
    and persistent_workers; the copy to the GPU waits for the host unless the memory is pinned.
    """

    resident: bool = False
    workers: int = 0
    pin_memory: bool = False
    prefetch: int | None = None
    persistent: bool = False

    def __post_init__(self) -> None:
        """Refuse options that would have no effect."""
        _at_least("workers", self.workers, 0)
        if self.prefetch is not None:
            _at_least("prefetch", self.prefetch, 1)
        if not self.workers and (self.prefetch is not None or self.persistent):
            raise ValueError("workers: 0, so there is nothing to prefetch or keep; give 1 or more")
        if self.resident and (self.workers or self.pin_memory):
            raise ValueError("resident: the batch stays on the device, so there is nothing to load; leave one out")


@dataclass(frozen=True)
class Plan:
    """A workload: `steps` of training or inference are timed for each of `batches`, after `warm_up` others.

    `read_loss` reads the loss after every so many training steps, which waits for the GPU; with 0 never. A `warm_up` of
    None is 50 steps on a GPU and 5 on a CPU. Of a recording, the trace holds `traced` steps.
    """

    model: str
    mode: str = "train"
    device: str = "cpu"
    batches: tuple[int, ...] = (128,)
    steps: int = 50
    warm_up: int | None = None
    precision: str = "fp32"
    compile: bool = False
    read_loss: int = 0
    seed: int = 0
    traced: int = TRACED
    size: Size = field(default_factory=Size)
    loader: Loader = field(default_factory=Loader)

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for name, legal in (("model", MODELS), ("mode", MODES), ("device", DEVICES), ("precision", PRECISIONS)):
            if getattr(self, name) not in legal:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {list(legal)}")
        if not self.batches or min(self.batches) < 1:
            raise ValueError(f"batches: {list(self.batches)} is no list of sizes from 1 on")
        _at_least("steps", self.steps, 1)
        _at_least("warm_up", self.warming, 0)
        _at_least("read_loss", self.read_loss, 0)
        _at_least("traced", self.traced, 1)
        if self.device == "cpu" and self.precision == "tf32":
            raise ValueError("precision: 'tf32' is one of GPUs; a CPU has ['fp32', 'fp16', 'bf16']")
        if self.device == "cpu" and self.loader.pin_memory:
            raise ValueError("pin_memory: speeds up copies to a GPU, and the device is 'cpu'")
        if self.read_loss and self.mode == "inference":
            raise ValueError("read_loss: inference has no loss; the mode is not 'train'")

    @property
    def warming(self) -> int:
        """Steps before the timed ones."""
        return WARM_UP[self.device] if self.warm_up is None else self.warm_up

    @property
    def dimensions(self) -> dict[str, Any]:
        """What of the size this model has."""
        names = {"resnet18": ("image",), "bert": ("sequence", "layers", "hidden", "heads", "vocabulary")}
        return {name: getattr(self.size, name) for name in names.get(self.model, ())}
