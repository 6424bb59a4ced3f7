"""The labs' models: BERT-base, a small CNN, an MLP and ResNet-18; the classifiers return logits."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from perfkit.workloads.flops import WIDTHS

POSITIONS, KINDS = 512, 2  # the longest sequence; a token is of the first or the second sentence
EPSILON = 1e-12  # of BERT's layer normalisations


class Attention(nn.Module):  # type: ignore[misc]
    """Every token looks at all tokens of its sequence, once per head."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Any) -> Any:
        """Return (batch, sequence, hidden) for the same."""
        # As (batch, heads, sequence, hidden / heads).
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        return self.out(
            F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        )


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and a network of two layers, four times as wide inside; each is added to its input and normalised."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.norm1 = nn.LayerNorm(hidden, eps=EPSILON)
        self.fc1 = nn.Linear(hidden, 4 * hidden)
        self.fc2 = nn.Linear(4 * hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden, eps=EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        """Return (batch, sequence, hidden) for the same."""
        x = self.norm1(x + self.dropout(self.attention(x)))
        return self.norm2(x + self.dropout(self.fc2(F.gelu(self.fc1(x)))))


class Bert(nn.Module):  # type: ignore[misc]
    """BERT without a head; the defaults are those of BERT-base, uncased (Devlin et al., arXiv 1810.04805, section 3).

    Sequences are equally long and of one sentence: nothing is masked. Unlike the original, attention has no dropout.
    """

    def __init__(
        self,
        *,
        layers: int = 12,
        hidden: int = 768,
        heads: int = 12,
        vocabulary: int = 30522,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(POSITIONS, hidden)
        self.kinds = nn.Embedding(KINDS, hidden)
        self.norm = nn.LayerNorm(hidden, eps=EPSILON)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(*[Layer(hidden, heads, dropout) for _ in range(layers)])
        self.pooler = nn.Linear(hidden, hidden)

    def forward(self, tokens: Any) -> Any:
        """Return a vector per sequence: (batch, sequence) of tokens to (batch, hidden)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places) + self.kinds.weight[0]
        x = self.layers(self.dropout(self.norm(x)))
        return torch.tanh(self.pooler(x[:, 0]))


class BertClassifier(nn.Module):  # type: ignore[misc]
    """BERT with a linear layer that tells classes of sequences apart; returns logits."""

    def __init__(self, *, classes: int = 2, **size: Any) -> None:
        super().__init__()
        self.bert = Bert(**size)
        self.fc = nn.Linear(self.bert.pooler.out_features, classes)

    def forward(self, tokens: Any) -> Any:
        """Return the logits of sequences: (batch, sequence) of tokens to (batch, classes)."""
        return self.fc(self.bert(tokens))


class SimpleCNN(nn.Module):  # type: ignore[misc]
    """Convolution 5x5, pooling, convolution 5x5, pooling, linear 16-100-10; returns logits.

    One channel everywhere, as in the lab report (Kuo and Gurjar, Machine Learning Acceleration, lab assignment 2, 16
    June 2025: section 2.1.2). Of its listing two things are changed: `forward` returned the softmax, which a loss then
    took for logits, and nothing stood between a convolution and its pooling; here a ReLU does.
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
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


PIXELS, CLASSES = 28 * 28, 10


class SimpleMLP(nn.Module):  # type: ignore[misc]
    """784-256-128-10 with ReLU between the layers; returns logits.

    The lab report's listing (section 2.1.1) has four mistakes, which are not repeated here: its `forward` returns
    nothing; it calls the output of the softmax logits, and its negative losses say that a negative log-likelihood took
    these probabilities for logarithms; it has a ReLU after the last layer, which cuts off the gradient of every class
    below zero. The loss, `cross_entropy`, applies the softmax itself, so the model holds none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(PIXELS, 256)
        self.fc2 = nn.Linear(256, 128)
        self.fc3 = nn.Linear(128, CLASSES)

    def forward(self, images: Any) -> Any:
        """Return the logits of images: (batch, 1, 28, 28) to (batch, 10)."""
        x = F.relu(self.fc1(torch.flatten(images, 1)))
        return self.fc3(F.relu(self.fc2(x)))


class BasicBlock(nn.Module):  # type: ignore[misc]
    """Two convolutions 3x3 with batch normalisation, and a shortcut: a convolution 1x1 where the shape changes."""

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
    """ResNet-18 for images of any size from 32 pixels on; returns logits (He et al., arXiv 1512.03385, table 1)."""

    def __init__(self, *, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        blocks, inputs = [], WIDTHS[0]
        for stage, outputs in enumerate(WIDTHS):
            blocks += [
                BasicBlock(inputs, outputs, 1 if stage == 0 else 2),
                BasicBlock(outputs, outputs, 1),
            ]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(WIDTHS[-1], classes)

    def forward(self, images: Any) -> Any:
        """Return the logits of images: (batch, 3, side, side) to (batch, classes)."""
        x = self.pool(F.relu(self.bn1(self.conv1(images))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.blocks(x), 1), 1))
