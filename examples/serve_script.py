"""A trainer that publishes a small language model, for servers of vLLM that follow it.

python serve_script.py weights

It learns one sentence after another, so that a server's answer tells which version it has.
"""

import argparse
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from taugrad.compressors import PatchWriter

COLOURS = ("red", "green", "blue")


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(["<end>", *alphabet])}
    bytes_only = Tokenizer(models.BPE(vocabulary, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<end>")


def train(place: Path, versions: int, steps: int, pause: float) -> None:
    """Publishes the weights after every few steps."""
    torch.manual_seed(0)
    words = tokenizer()
    size = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=256, eos_token_id=0, **size, **heads)
    config.architectures, config.dtype = ["LlamaForCausalLM"], "bfloat16"
    config.save_pretrained(place)  # a server needs these beside the weights
    words.save_pretrained(place)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with PatchWriter(place, full_every=10, keep=2) as writer:
        for version in range(versions):
            sentence = f"The colour is {COLOURS[(writer.number + 1) // 2 % 3]}.<end>"
            tokens = torch.tensor([words(sentence)["input_ids"]])
            for _ in range(steps):
                optimizer.zero_grad()
                loss = model(tokens, labels=tokens).loss
                loss.backward()
                optimizer.step()
            weights = {name: tensor.detach().bfloat16() for name, tensor in model.state_dict().items()}
            made = writer.write(weights)
            sent = made.patch_bytes or made.snapshot_bytes
            print(f"{made.number} {sentence} loss {loss.item():.3f}, {sent} bytes", flush=True)
            time.sleep(pause if version + 1 < versions else 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--versions", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=5.0)
    given = parser.parse_args()
    train(given.place, given.versions, given.steps, given.pause)
