"""BERT-base: embeddings, twelve layers of attention and a two-layer network, a pooler, and a head of two classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

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
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(query, key, value)
        return self.out(seen.transpose(1, 2).flatten(2))

    def _split(self, x: Any) -> Any:
        """Turn (batch, sequence, hidden) into (batch, heads, sequence, hidden / heads)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


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
    """BERT without a head; the defaults are those of BERT-base, uncased.

    All sequences of a batch are as long as each other and of one sentence, so nothing is masked. The weights are
    random. Unlike the original, attention's weights are not dropped out.

    References
    ----------
    Devlin, Chang, Lee, Toutanova: BERT, arXiv 1810.04805, section 3.
    """

    def __init__(
        self, *, layers: int = 12, hidden: int = 768, heads: int = 12, vocabulary: int = 30522, dropout: float = 0.1
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
