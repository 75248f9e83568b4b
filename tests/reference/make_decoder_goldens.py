#!/usr/bin/python3
"""Writes the golden vectors of language models: logits, and a greedy continuation; of some the tensors
inside.

    make_decoder_goldens.py [NAME ...]

goldens/lm-<name> are of random models, models/<name>, at some hundred positions; goldens/stories is
of the built-in model, and the one to write again when that changes. README.md lists the tensors.
Run again, it writes the same bytes.
"""

import os

# One thread: how a sum is split among threads would change its rounding. The BLAS reads this when
# numpy or torch loads it.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import philox
from decoder import Decoder, greedy
from decoder_config import Config, widen
from make_checkpoint import checkpoint_tensors, read_config
from make_goldens import TRACED_LENGTH, TRACED_ROWS, last_rows, write_golden

STORIES = Path(__file__).resolve().parents[2] / "engine" / "models" / "stories"
sys.path.insert(0, str(Path(__file__).resolve().parent / "stories"))

from evaluate import read_model  # noqa: E402
from tokenizer import LETTERS, Tokenizer  # noqa: E402

STORY, STORY_STEPS = "Once upon a time", 64
PROMPT_LEN = 8
GREEDY_STEPS = 16
# Where an engine in float32 must decide as float64 does: the best logit is so far above the second
# best, the last chosen expert's probability so far above that of the first one left out.
LEAST_MARGIN = 1e-3
LEAST_ROUTER_MARGIN = 1e-5
LEAST_DISTINCT = 4  # ids of a continuation: random models like to repeat themselves

# Golden: (model, seed, tokens, weights of norms, dtype of the weights).
GOLDENS = {
    "llama-gqa": ("llama-gqa", 42, 300, "ones", "f32"),
    "llama-gqa-norms": ("llama-gqa", 43, 70, "random", "f32"),
    "llama-bias": ("llama-bias", 2, 210, "ones", "f32"),
    "llama-rope-llama3": ("llama-rope-llama3", 3, 1024, "ones", "f32"),
    "llama-rope-linear": ("llama-rope-linear", 4, 210, "ones", "f32"),
    "qwen3-tied": ("qwen3-tied", 5, 210, "ones", "f32"),
    "qwen3-tied-bf16": ("qwen3-tied", 6, 70, "random", "bf16"),
    "qwen3-untied": ("qwen3-untied", 7, 210, "ones", "f32"),
    "qwen3-untied-norms": ("qwen3-untied", 8, 70, "random", "f32"),
    "qwen3-yarn": ("qwen3-yarn", 9, 210, "ones", "f32"),
    "qwen3-moe": ("qwen3-moe", 10, 210, "ones", "f32"),
    "minimind-dense": ("minimind-dense", 2**32 + 11, 210, "ones", "f32"),
    "minimind-dense-f16": ("minimind-dense", 12, 70, "random", "f16"),
    "minimind-yarn": ("minimind-yarn", 13, 300, "ones", "f32"),
    "minimind-moe": ("minimind-moe", 14, 210, "ones", "f32"),
    "minimind-moe-norms": ("minimind-moe", 15, 70, "random", "f32"),
    "minimind2-moe": ("minimind2-moe", 16, 210, "ones", "f32"),
}
TRACED = ("minimind-dense", "llama-bias", "qwen3-untied")


def kept_rows(n_tokens):
    """Positions whose logits are kept: some at both ends, and at edges of pages between."""
    if n_tokens < 100:
        return [0, 1, 2, 15, 16, n_tokens - 2, n_tokens - 1]
    between = [row for row in (15, 16, 17, 64, 128, 256, 512, 768) if row < n_tokens - 8]
    return [*range(8), *between, *range(n_tokens - 8, n_tokens)]


def draw_tokens(seed, name, n, vocab_size):
    """n ids, uniform: floor(u * vocab_size) of philox's numbers u under that name."""
    u = (philox.uniform(seed, name, (n,)).astype(np.float64) + 1.0) / 2.0
    return np.floor(u * vocab_size).astype(np.int32)


def router_margin(config, trace):
    """The least distance between the last chosen expert's probability and the next one's."""
    if not config.experts:
        return None
    scores = torch.cat([trace[f"blocks.{i}.mlp.hook_expert_weights"] for i in range(config.layers)])
    best = scores.sort(dim=-1, descending=True).values
    last = config.experts_per_token - 1
    return float((best[..., last] - best[..., last + 1]).min())


def clear_logits(decoder, seed, n_tokens):
    """(tokens, logits, router margin) of the first draw of tokens without a close call."""
    for draw in range(100):
        tokens = draw_tokens(seed, f"tokens.{draw}", n_tokens, decoder.config.vocab_size)
        trace = {}
        logits, _ = decoder.forward(torch.from_numpy(tokens)[None].long(), trace=trace)
        margin = router_margin(decoder.config, trace)
        if margin is None or margin > LEAST_ROUTER_MARGIN:
            return tokens, logits[0], margin
    raise RuntimeError("every draw has a close call")


def clear_continuation(decoder, seed):
    """(prompt, greedy ids, margins) of the first varied one without a close call or an end."""
    config = decoder.config
    for draw in range(1000):
        prompt = draw_tokens(seed, f"prompt.{draw}", PROMPT_LEN, config.vocab_size)
        ids, margins = greedy(decoder, prompt.tolist(), GREEDY_STEPS)
        if len(set(ids)) < LEAST_DISTINCT:
            continue
        trace = {}
        decoder.forward(torch.tensor([prompt.tolist() + ids]), trace=trace)
        routed = router_margin(config, trace)
        if (
            min(margins) > LEAST_MARGIN
            and (routed is None or routed > LEAST_ROUTER_MARGIN)
            and not set(ids) & set(config.eos)
        ):
            return prompt, np.array(ids, dtype=np.int32), np.array(margins)
    raise RuntimeError("no prompt will do")


def make_golden(name, model, seed, n_tokens, norms, dtype):
    """goldens/lm-<name>."""
    config = Config.from_dict(read_config(model))
    stored = checkpoint_tensors(model, seed, dtype, norms)
    weights = {key: widen(array) for key, array in stored.items()}
    exact = Decoder(config, weights, torch.float64)
    tokens, logits64, margin = clear_logits(exact, seed, n_tokens)
    prompt, ids, margins = clear_continuation(exact, seed)
    logits, _ = Decoder(config, weights).forward(torch.from_numpy(tokens)[None].long())
    rows = kept_rows(n_tokens)
    tensors = {
        "tokens": tokens,
        "rows": np.array(rows, dtype=np.int32),
        "logits": logits[0, rows],
        "logits64": logits64[rows],
        "prompt": prompt,
        "greedy": ids,
        "greedy_margin": margins,
    }
    metadata = {"model": model, "seed": str(seed), "norms": norms, "dtype": dtype}
    if margin is not None:
        metadata["router_margin"] = f"{margin:.1e}"
    write_golden(f"lm-{name}", tensors, metadata)
    if name in TRACED:
        trace = {}
        traced = torch.from_numpy(tokens[:TRACED_LENGTH])[None].long()
        exact.forward(traced, trace=trace)
        metadata["first_row"] = str(TRACED_LENGTH - TRACED_ROWS)
        write_golden(f"trace-lm-{name}", last_rows(trace), metadata)


def make_stories_golden():
    """goldens/stories: how the built-in model goes on from a text."""
    exact = read_model(STORIES, torch.float64)
    config = exact.config
    tokenizer = Tokenizer(STORIES / "tokenizer.json")
    prompt = [config.bos, *tokenizer.encode(STORY)]
    ids, margins = greedy(exact, prompt, STORY_STEPS)
    if min(margins) <= LEAST_MARGIN or set(ids) & set(config.eos):
        raise RuntimeError(f"a close call or an end: {min(margins)} {ids}")
    symbols = {number: symbol for symbol, number in tokenizer.vocab.items()}
    by_letter = {letter: byte for byte, letter in LETTERS.items()}
    told = bytes(by_letter[letter] for number in ids for letter in symbols[number]).decode()
    tensors = {
        "prompt": np.array(prompt, dtype=np.int32),
        "greedy": np.array(ids, dtype=np.int32),
        "greedy_margin": np.array(margins),
    }
    write_golden("stories", tensors, {"model": "stories", "text": STORY, "told": told})


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone")
    names = parser.parse_args().names or ["stories", *GOLDENS]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with torch.no_grad():
        for name in names:
            if name == "stories":
                make_stories_golden()
            else:
                make_golden(name, *GOLDENS[name])


if __name__ == "__main__":
    main()
