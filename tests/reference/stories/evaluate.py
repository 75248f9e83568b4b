#!/usr/bin/python3
"""How well a language model foretells stories: bits and perplexity a character.

    make
    evaluate.py engine/models/stories held_out.txt ...
    evaluate.py path/to/stories260K --end 1 held_out.txt ...

A text file has a story a line, tabs for line breaks. Each story stands behind <s>, as its tokenizer
puts it there, and before the token that ends it, which counts as one character:

    bits = sum over stories of -log2 p(story, end | <s>) / sum over stories of (characters + 1)
    perplexity = 2 ** bits

So models with different vocabularies can be compared. Token ids are those of attnd's POST /tokenize,
probabilities those of decoder.py in float32. Stories that do not fit into the model's positions are
left out, and counted.
"""

import os

# One thread, as for the goldens: the same numbers every time.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import math
import subprocess
import sys
import urllib.request
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "reference"))

import safetensors_io  # noqa: E402
from decoder import Decoder  # noqa: E402
from decoder_config import Config, widen  # noqa: E402
from tokenizer import read_stories  # noqa: E402

ATTND = ROOT / "build" / "release" / "attnd"


def read_model(folder, dtype=torch.float32):
    """A checkpoint folder as a decoder."""
    config = Config.from_dict(json.loads((folder / "config.json").read_text()))
    weights, _ = safetensors_io.read(folder / "model.safetensors")
    return Decoder(config, {name: widen(array) for name, array in weights.items()}, dtype)


def tokenize(folder, texts, attnd=ATTND):
    """The ids of texts, each with <s>, as the server makes them with the folder's tokenizer."""
    command = [attnd, "--port", "0", "--log-level", "error", "--model", f"model={folder}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().split()[-1] + "/tokenize"
            ids = []
            for text in texts:
                body = json.dumps({"model": "model", "text": text}).encode()
                with urllib.request.urlopen(url, body) as reply:
                    ids.append(json.load(reply)["tokens"])
            return ids
        finally:
            server.terminate()


def bits_of(decoder, sequences, batch):
    """-log2 of the probability of each sequence of ids behind its first one."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    bits = [0.0] * len(sequences)
    for first in range(0, len(order), batch):
        chosen = order[first : first + batch]
        # What is behind a sequence's end does not reach it: attention is causal.
        longest = len(sequences[chosen[-1]])
        ids = torch.zeros(len(chosen), longest, dtype=torch.long)
        targets = torch.full((len(chosen), longest), -100)
        for row, i in enumerate(chosen):
            ids[row, : len(sequences[i])] = torch.tensor(sequences[i])
            targets[row, : len(sequences[i]) - 1] = ids[row, 1 : len(sequences[i])]
        logits, _ = decoder.forward(ids)
        losses = cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        for row, i in enumerate(chosen):
            bits[i] = float(losses[row].double().sum()) / math.log(2)
    return bits


def evaluate(decoder, stories, ids, end, batch=16):
    """What is known of some stories, whose ids begin with <s>, as a dict."""
    fitting = [i for i in range(len(ids)) if len(ids[i]) + 1 <= decoder.config.max_positions]
    bits = sum(bits_of(decoder, [[*ids[i], end] for i in fitting], batch))
    characters = sum(len(stories[i]) + 1 for i in fitting)
    tokens = sum(len(ids[i]) for i in fitting)  # without <s>, with the end
    each = bits / characters if fitting else math.nan
    return {
        "stories": len(fitting),
        "left_out": len(ids) - len(fitting),
        "characters": characters,
        "tokens": tokens,
        "bits_per_character": each,
        "perplexity_per_character": 2**each,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a checkpoint folder")
    parser.add_argument("stories", nargs="+", help="text files, a story a line")
    parser.add_argument("--end", type=int, help="the id that ends a story (config.json's eos)")
    parser.add_argument("--attnd", type=Path, default=ATTND, help="the program that tokenizes")
    parser.add_argument("--json", action="store_true", help="an object a file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    decoder = read_model(arguments.model)
    end = decoder.config.eos[0] if arguments.end is None else arguments.end
    with torch.no_grad():
        for path in arguments.stories:
            stories = list(read_stories([path]))
            ids = tokenize(arguments.model, stories, arguments.attnd)
            found = evaluate(decoder, stories, ids, end)
            if arguments.json:
                print(json.dumps({"file": path, **found}))
            else:
                print(
                    f"{path}: {found['bits_per_character']:.4f} bits, perplexity "
                    f"{found['perplexity_per_character']:.4f} a character; {found['stories']} "
                    f"stories of {found['characters']} characters, {found['tokens']} tokens; "
                    f"{found['left_out']} left out"
                )


if __name__ == "__main__":
    main()
