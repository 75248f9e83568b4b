#!/usr/bin/python3
"""What the attention heads of a language model look at: a table of three scores a head.

    make
    heads.py engine/models/stories held_out.txt

Each score is the mean weight, by softmax of the scores, that a head's row p gives to one column:

    previous    p - 1, for p >= 2, in stories: the token before (p = 1 would be <s> again)
    induction   what followed the current token when it came before: p - 49, for p = 51 ... 150,
                where <s> stands at 0 and 50 random tokens, each another, at 1 ... 50 and again
                and again (Olsson et al., 2022). Copying what follows is what induction is for.
    first       0, for p >= 8, in stories: a resting place, for heads that find nothing

The weights are hook_pattern of decoder.py in float32. Rows of all stories count alike. The same
arguments print the same table.
"""

from evaluate import ATTND, read_model, tokenize  # before torch: it sets the number of threads

import argparse
import json
import random
from pathlib import Path

import torch

from tokenizer import read_stories

PERIOD, REPEATS, SEQUENCES = 50, 3, 8
SPECIAL_IDS = 3  # <unk>, <s>, </s>


def patterns(decoder, ids):
    """Attention weights [layers, heads, rows, columns] of one sequence."""
    trace = {}
    decoder.forward(torch.tensor([ids]), trace=trace)
    layers = range(decoder.config.layers)
    return torch.cat([trace[f"blocks.{layer}.attn.hook_pattern"] for layer in layers]).double()


def story_scores(decoder, sequences):
    """(previous, first) scores, [layers, heads] each, of sequences of ids that begin with <s>."""
    previous, first = [], []
    for ids in sequences:
        weights = patterns(decoder, ids)
        previous.append(weights.diagonal(-1, 2, 3)[..., 1:])  # without row 1
        first.append(weights[..., 8:, 0])
    return torch.cat(previous, -1).mean(-1), torch.cat(first, -1).mean(-1)


def repeated(decoder, seed):
    """<s> and PERIOD random tokens, REPEATS times."""
    config = decoder.config
    ids = random.Random(seed).sample(range(SPECIAL_IDS, config.vocab_size), PERIOD)
    return [config.bos] + ids * REPEATS


def induction_score(decoder, seed):
    """The induction scores [layers, heads]."""
    copied = []
    for i in range(SEQUENCES):
        weights = patterns(decoder, repeated(decoder, seed * SEQUENCES + i))
        # The diagonal begins with row 49; the first that has something to copy is 51.
        copied.append(weights.diagonal(1 - PERIOD, 2, 3)[..., 2:])
    return torch.cat(copied, -1).mean(-1)


def head_scores(decoder, sequences, seed=0):
    """A dict for each head, layer by layer."""
    with torch.no_grad():
        previous, first = story_scores(decoder, sequences)
        induction = induction_score(decoder, seed)
    return [
        {
            "layer": layer,
            "head": head,
            "previous": round(float(previous[layer, head]), 4),
            "induction": round(float(induction[layer, head]), 4),
            "first": round(float(first[layer, head]), 4),
        }
        for layer in range(decoder.config.layers)
        for head in range(decoder.config.heads)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a checkpoint folder")
    parser.add_argument("stories", nargs="+", help="text files, a story a line")
    parser.add_argument("--at-most", type=int, default=100, help="stories to look at")
    parser.add_argument("--seed", type=int, default=0, help="of the random tokens")
    parser.add_argument("--attnd", default=ATTND, help="the program that tokenizes")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    decoder = read_model(arguments.model)
    stories = list(read_stories(arguments.stories))[: arguments.at_most]
    ids = tokenize(arguments.model, stories, arguments.attnd)
    scores = head_scores(decoder, ids, arguments.seed)
    if arguments.json:
        print(json.dumps({"stories": len(stories), "heads": scores}))
        return
    print("layer head previous induction first")
    for score in scores:
        print("{layer:5} {head:4} {previous:8.3f} {induction:9.3f} {first:5.3f}".format(**score))


if __name__ == "__main__":
    main()
