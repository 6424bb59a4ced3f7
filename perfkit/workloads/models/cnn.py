"""The lab's SimpleCNN: two convolutions of one channel and two linear layers, for MNIST."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class SimpleCNN(nn.Module):  # type: ignore[misc]
    """Convolution 5x5, pooling, convolution 5x5, pooling, linear 16-100-10; returns logits.

    One channel everywhere, as in the lab report. Of the report's listing two things are changed: `forward` returned
    the softmax, which a loss then took for logits, and nothing stood between a convolution and its pooling; here a
    ReLU does.

    References
    ----------
    Kuo and Gurjar, Machine Learning Acceleration, lab assignment 2, 16 June 2025: section 2.1.2.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 1, kernel_size=5)
        self.conv2 = nn.Conv2d(1, 1, kernel_size=5)
        self.pool = nn.MaxPool2d(kernel_size=2)
        self.fc1 = nn.Linear(4 * 4, 100)
        self.fc2 = nn.Linear(100, 10)

    def forward(self, images: Any) -> Any:
        """Return the logits of images: (batch, 1, 28, 28) to (batch, 10)."""
        x = self.pool(F.relu(self.conv1(images)))  # 28 -> 24 -> 12
        x = self.pool(F.relu(self.conv2(x)))  # 12 -> 8 -> 4
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        return self.fc2(x)
