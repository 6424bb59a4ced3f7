"""ResNet-18: a convolution, eight residual blocks of two convolutions, a linear layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTHS = (64, 128, 256, 512)  # channels of the four stages, two blocks each


class BasicBlock(nn.Module):  # type: ignore[misc]
    """Two convolutions 3x3, each with batch normalisation, and a shortcut around them.

    Where the block halves the image or changes the channels, the shortcut is a convolution 1x1.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            resized = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(resized, nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        """Return (batch, outputs, height / stride, width / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):  # type: ignore[misc]
    """ResNet-18 for images of any size from 32 pixels on; returns logits.

    References
    ----------
    He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, arXiv 1512.03385, table 1.
    """

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        blocks = []
        inputs = WIDTHS[0]
        for stage, outputs in enumerate(WIDTHS):
            blocks += [BasicBlock(inputs, outputs, 1 if stage == 0 else 2), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(WIDTHS[-1], classes)

    def forward(self, images: Any) -> Any:
        """Return the logits of images: (batch, 3, side, side) to (batch, classes)."""
        x = self.pool(F.relu(self.bn1(self.conv1(images))))
        x = self.blocks(x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        return self.fc(x)
