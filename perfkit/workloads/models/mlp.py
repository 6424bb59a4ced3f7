"""The lab's SimpleMLP: three linear layers that tell the ten digits of MNIST apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

PIXELS, CLASSES = 28 * 28, 10


class SimpleMLP(nn.Module):  # type: ignore[misc]
    """784-256-128-10 with ReLU between the layers; returns logits.

    The lab report's listing has four mistakes, which are not repeated here: its `forward` returns nothing; it calls
    the output of the softmax logits, and its negative losses say that a negative log-likelihood took these
    probabilities for logarithms; it has a ReLU after the last layer, which cuts off the gradient of every class below
    zero. The loss, `cross_entropy`, applies the softmax itself, so the model holds none.

    References
    ----------
    Kuo and Gurjar, Machine Learning Acceleration, lab assignment 2, 16 June 2025: section 2.1.1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(PIXELS, 256)
        self.fc2 = nn.Linear(256, 128)
        self.fc3 = nn.Linear(128, CLASSES)

    def forward(self, images: Any) -> Any:
        """Return the logits of images: (batch, 1, 28, 28) to (batch, 10)."""
        x = torch.flatten(images, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)
