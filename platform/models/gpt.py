"""A GPT as nanoGPT builds it: learned positions, norms before each part, GELU, 4 times the width inside.

Shapes: N texts, T positions, C width, H heads, V vocabulary.
"""

from typing import cast

from torch import Tensor, nn

from ..spec.models import Gpt

_SPREAD = 0.02
"""Standard deviation of the first weights."""


class GptNetwork(nn.Module):
    """Tells at each position the scores of the next token, from that token and those before it.

    Attributes:
        tokens: embedding of tokens, [V, C].
        positions: embedding of positions, [T, C].
        head: the last layer; with `tied` its weights are those of `tokens`.
    """

    def __init__(self, config: Gpt, positions: int, vocabulary: int) -> None:
        """Fills the weights as GPT-2 does: normal of 0.02, smaller where blocks add to their sum."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.width)
        self.positions = nn.Embedding(positions, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=config.bias)
        self.head = nn.Linear(config.width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                # A sum of 2 * layers outputs then has the spread of one.
                share = (2 * config.layers) ** -0.5 if name.endswith("out.weight") else 1.0
                nn.init.normal_(parameter, std=_SPREAD * share)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores, float [N, T, V], of tokens, int64 [N, T]; raises ValueError: T is above the positions."""
        length = tokens.shape[1]
        if length > self.positions.num_embeddings:
            raise ValueError(
                f"texts of {length} tokens: this network was built for "
                f"at most {self.positions.num_embeddings}"
            )
        stream = self.dropout(self.tokens(tokens) + self.positions.weight[:length])
        for block in self.blocks:
            stream = block(stream)
        return cast(Tensor, self.head(self.norm(stream)))


class _Block(nn.Module):
    """Adds to what it is given, [N, T, C], what attention and a feed-forward net make of it."""

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, bias=config.bias)
        self.attention = _Attention(config)
        self.norm2 = nn.LayerNorm(config.width, bias=config.bias)
        self.mlp = _Mlp(config)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.attention(self.norm1(stream))
        return cast(Tensor, stream + self.mlp(self.norm2(stream)))


class _Attention(nn.Module):
    """Mixes, at each position, the values at it and before it, [N, T, C]."""

    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.heads, self.share = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        texts, length, width = inputs.shape
        by_head = self.qkv(inputs).view(texts, length, 3, self.heads, width // self.heads)
        queries, keys, values = by_head.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=self.share if self.training else 0.0, is_causal=True
        )
        joined = mixed.transpose(1, 2).reshape(texts, length, width)
        return cast(Tensor, self.dropout(self.out(joined)))


class _Mlp(nn.Sequential):
    def __init__(self, config: Gpt) -> None:
        super().__init__()
        self.add_module("fc", nn.Linear(config.width, 4 * config.width, bias=config.bias))
        self.add_module("gelu", nn.GELU())
        self.add_module("out", nn.Linear(4 * config.width, config.width, bias=config.bias))
        self.add_module("dropout", nn.Dropout(config.dropout))
