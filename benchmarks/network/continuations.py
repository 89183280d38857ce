"""A downstream score of a language model: which of four beginnings a continuation belongs to."""

import torch
from torch import nn

from taugrad.platform.data.examples import Examples

CHOICES = 4


def continuation_score(model: nn.Module, examples: Examples) -> float:
    """The share of continuations that are the most likely after their own beginning, among four.

    A window of text is cut in half. Its second half has a likelihood after its own first half, and after
    those of three other windows. So no continuation has an advantage by being likely after anything. By
    chance the score is 0.25.
    """
    windows = len(examples) // CHOICES * CHOICES
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))[:windows]
    tokens, _ = examples.batch(order.numpy(), None)
    half = tokens.shape[1] // 2
    groups = tokens.view(-1, CHOICES, tokens.shape[1])
    right = 0
    model.eval()
    with torch.no_grad():
        for group in groups:
            beginnings = group[:, :half].repeat_interleave(CHOICES, 0)
            continuations = group[:, half:].repeat(CHOICES, 1)
            outputs = model(torch.cat([beginnings, continuations], 1))[:, half - 1 : -1]
            chosen = outputs.log_softmax(-1).gather(-1, continuations.unsqueeze(-1)).sum((1, 2))
            right += int((chosen.view(CHOICES, CHOICES).argmax(0) == torch.arange(CHOICES)).sum())
    model.train()
    return right / windows
