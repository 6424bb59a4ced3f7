"""BERT for question answering, written out operator by operator as its first implementations run it in PyTorch."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

HIDDEN, HEADS, VOCABULARY, POSITIONS, EPSILON = 768, 12, 28_996, 512, 1e-12


class Layer(nn.Module):
    """Attention and a network of two layers, each added to its input and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN, eps=EPSILON), nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Any, mask: Any) -> Any:
        """Return (batch, sequence, hidden) for the same; `mask` is added to the scores."""
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(HIDDEN // HEADS) + mask
        seen = torch.matmul(self.dropout(F.softmax(scores, dim=-1)), value)
        seen = seen.permute(0, 2, 1, 3).contiguous()
        x = self.norm1(self.dropout(self.out(seen.view(*seen.shape[:2], HIDDEN))) + x)
        return self.norm2(self.dropout(self.fc2(F.gelu(self.fc1(x)))) + x)

    def _split(self, x: Any) -> Any:
        return x.view(*x.shape[:2], HEADS, HIDDEN // HEADS).permute(0, 2, 1, 3)


class Bert(nn.Module):
    """Embeddings, layers, and two logits per token: does the answer start or end there?"""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.kinds, self.norm = nn.Embedding(2, HIDDEN), nn.LayerNorm(HIDDEN, eps=EPSILON)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(HIDDEN, 2)
        self.register_buffer("places", torch.arange(POSITIONS).expand(1, -1))

    def forward(self, tokens: Any, kinds: Any, mask: Any) -> tuple[Any, Any]:
        """Return the logits of start and end: (batch, sequence) each."""
        added = (1.0 - mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        x = self.tokens(tokens) + self.kinds(kinds)
        x = self.dropout(self.norm(x + self.positions(self.places[:, : tokens.shape[1]])))
        for layer in self.layers:
            x = layer(x, added)
        start, end = self.head(x).split(1, dim=-1)
        return start.squeeze(-1).contiguous(), end.squeeze(-1).contiguous()
