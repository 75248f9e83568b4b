#!/usr/bin/python3
"""Writes the golden vectors in goldens/: inputs, and what the reference makes of them.

example1 .. example7 follow the seven examples of the attention tutorial that the seed-attention
model comes from, number for number: the inputs are drawn from one stream of torch's generator, in
the tutorial's order. The others are random models, models/<name>, at longer contexts and other
shapes. README.md lists every tensor. Run again, it writes the same bytes.
"""

import json
import os
from pathlib import Path

# One thread: how a sum is split among threads would change its rounding. The BLAS reads this when
# numpy or torch loads it.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch

import philox
import safetensors_io
from make_seed_model import CONFIG, seed_weights
from seed_attention import Config, SeedAttention, rope_tables, rotate

HERE = Path(__file__).resolve().parent
GOLDENS = HERE / "goldens"
MODELS = HERE / "models"

PROMPT_LEN = 4
DECODE_STEPS = 3

# Model folder: (seed, input rows, last rows of them whose outputs are kept).
# One seed is past 32 bits, so that both words of the philox key matter.
RANDOM_MODELS = {
    "chain3": (42, 210, 210),
    "mha-nonorm": (7, 210, 210),
    "mqa": (2**32 + 5, 210, 210),
    "many-heads": (9, 210, 210),
    "minimind-layer": (1234, 40, 4),
}

# trace-*: the tensors inside, at the last positions of the first TRACED_LENGTH: both sides of a
# page's edge. The kinds that the engine shows.
TRACED_LENGTH = 18
TRACED_ROWS = 3
TRACED_KINDS = {"hook_embed", "hook_resid_pre", "hook_resid_mid", "hook_mlp_out", "hook_resid_post"}
TRACED_KINDS |= {"hook_attn_out", "hook_attn_scores", "hook_pattern", "hook_z", "key", "value"}
TRACED_KINDS |= {f"hook_{stage}{name}" for stage in ("", "rot_") for name in "qk"}
TRACED_KINDS |= {"hook_v", "hook_q_normed", "hook_k_normed"}


def write_golden(name, tensors, metadata):
    """Writes goldens/<name>.safetensors from tensors of torch or numpy."""
    arrays = {key: np.asarray(tensor) for key, tensor in tensors.items()}
    safetensors_io.write(GOLDENS / f"{name}.safetensors", arrays, metadata)


def attend(model, chunks):
    """Feeds chunks one after another through one cache.

    Returns every call's inputs, output and trace under `call<i>.`, i counting from 0.
    """
    cache = None
    tensors = {}
    for i, inputs in enumerate(chunks):
        trace = {}
        output, cache = model.forward(inputs, cache, trace)
        named = {"inputs": inputs, "output": output, **trace}
        tensors.update({f"call{i}.{name}": tensor for name, tensor in named.items()})
    return tensors


def last_rows(trace):
    """The rows to keep of a trace of TRACED_LENGTH positions, as float32, without the batch axis."""
    rows = {}
    for name, tensor in trace.items():
        kind = name.rpartition(".")[2]
        if kind in TRACED_KINDS:
            by_head = kind in ("hook_attn_scores", "hook_pattern")
            axis, first = int(by_head), TRACED_LENGTH - TRACED_ROWS
            rows[name] = tensor[0].narrow(axis, first, TRACED_ROWS).float()
    return rows


def make_examples():
    """The seven examples. Every torch.randn call stands where the tutorial has it."""
    weights = seed_weights()
    config = Config.from_dict(CONFIG)
    model = SeedAttention(config, weights)
    meta = {"model": "seed-attention"}
    hidden, head_dim, kv_heads = config.hidden_size, config.head_dim, config.kv_heads
    group = config.heads // kv_heads

    # 1: projections split into heads.
    call = attend(model, [torch.randn(2, 5, hidden)])
    projections = {name: call[f"call0.blocks.0.attn.hook_{name}"] for name in "qkv"}
    write_golden("example1", {"inputs": call["call0.inputs"], **projections}, meta)

    # 2: query head h reads KV head h / group.
    repeated = {
        f"{name}_repeated": projections[name].repeat_interleave(group, dim=2) for name in "kv"
    }
    write_golden("example2", {"k": projections["k"], "v": projections["v"], **repeated}, meta)

    # 3: RoPE turns by the position, and a dot product sees only the distance.
    cos, sin = rope_tables(range(16), head_dim, config.rope_theta)
    k_raw = torch.randn(1, 2, kv_heads, head_dim)
    v_test = torch.randn(1, 1, kv_heads, head_dim)
    v_rotated = rotate(v_test.expand(1, 3, kv_heads, head_dim), cos[:3], sin[:3])
    dots = [(v_rotated[:, i] * v_rotated[:, i + 1]).sum() for i in range(2)]
    example3 = {
        "cos": cos,
        "sin": sin,
        "k_raw": k_raw,
        "k_rotated": rotate(k_raw, cos[:2], sin[:2]),
        "v_test": v_test,
        "v_rotated": v_rotated,
        "dots": torch.stack(dots),
    }
    write_golden("example3", example3, meta)

    # 4: equal scores under the causal mask. Zero inputs give them: q, and so every score, is 0.
    call = attend(model, [torch.zeros(1, 5, hidden)])
    hook = "call0.blocks.0.attn.hook_"
    example4 = {
        "inputs": call["call0.inputs"],
        "attn_scores": call[hook + "attn_scores"],
        "pattern": call[hook + "pattern"],
    }
    write_golden("example4", example4, meta)

    # 5: one whole forward pass of two sequences.
    calls = attend(model, [torch.randn(2, 6, hidden)])
    write_golden("example5", calls, {**meta, "calls": "1"})

    # 6: prefill, then decode step by step.
    chunks = [torch.randn(1, PROMPT_LEN, hidden)]
    chunks += [torch.randn(1, 1, hidden) for _ in range(DECODE_STEPS)]
    calls = attend(model, chunks)
    write_golden("example6", calls, {**meta, "calls": str(len(chunks))})

    # 7: the same rows at once (whole) and as prefill and decode (call0 ..).
    rows = torch.randn(1, PROMPT_LEN + DECODE_STEPS, hidden)
    whole = attend(model, [rows])
    whole = {name.replace("call0.", "whole.", 1): tensor for name, tensor in whole.items()}
    calls = attend(model, rows.split([PROMPT_LEN] + [1] * DECODE_STEPS, dim=1))
    write_golden("example7", {**whole, **calls}, {**meta, "calls": str(1 + DECODE_STEPS)})


def make_random(name, seed, n_rows, n_kept):
    """A random model's outputs, the last n_kept of n_rows, in float32 and in float64."""
    config = json.loads((MODELS / name / "config.json").read_text())
    weights = philox.attention_weights(seed, config)
    inputs = philox.uniform(seed, "inputs", (n_rows, config["hidden_size"]))
    tensors = {"inputs": inputs}
    for key, dtype in (("output", torch.float32), ("output64", torch.float64)):
        model = SeedAttention(Config.from_dict(config), weights, dtype)
        output, _ = model.forward(torch.from_numpy(inputs)[None])
        tensors[key] = output[0, -n_kept:]
    metadata = {"model": name, "seed": str(seed), "first_row": str(n_rows - n_kept)}
    write_golden(name, tensors, metadata)

    trace = {}
    model = SeedAttention(Config.from_dict(config), weights, torch.float64)
    model.forward(torch.from_numpy(inputs)[None, :TRACED_LENGTH], trace=trace)
    first_row = TRACED_LENGTH - TRACED_ROWS
    metadata = {"model": name, "seed": str(seed), "first_row": str(first_row)}
    write_golden(f"trace-{name}", last_rows(trace), metadata)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    GOLDENS.mkdir(exist_ok=True)
    with torch.no_grad():
        make_examples()
        for name, numbers in RANDOM_MODELS.items():
            make_random(name, *numbers)


if __name__ == "__main__":
    main()
