#!/usr/bin/python3
"""Writes engine/models/seed-attention: one attention layer with PyTorch's own initial weights.

The weights are what torch.manual_seed(42) and then four nn.Linear layers, in the order q, k, v, o,
give; the QK-norm weights are ones. Run again, it writes the same bytes.
"""

import json
from pathlib import Path

import torch

import safetensors_io

SEED = 42
CONFIG = {
    "model_type": "attention",
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 1,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "qk_norm": True,
    "torch_dtype": "float32",
}
FOLDER = Path(__file__).resolve().parents[2] / "engine" / "models" / "seed-attention"


def seed_weights():
    """The model's tensors by name, as float32 arrays.

    Seeds torch's generator and leaves it just behind the last weight: torch.randn calls that
    follow continue the stream of random numbers the golden examples are drawn from.
    """
    torch.manual_seed(SEED)
    hidden, head_dim = CONFIG["hidden_size"], CONFIG["head_dim"]
    q_width = CONFIG["num_attention_heads"] * head_dim
    kv_width = CONFIG["num_key_value_heads"] * head_dim
    shapes = {
        "q_proj": (hidden, q_width),
        "k_proj": (hidden, kv_width),
        "v_proj": (hidden, kv_width),
        "o_proj": (q_width, hidden),
    }
    weights = {}
    for name, (n_in, n_out) in shapes.items():
        linear = torch.nn.Linear(n_in, n_out, bias=False)
        weights[f"model.layers.0.self_attn.{name}.weight"] = linear.weight.detach().numpy()
    for name in ("q_norm", "k_norm"):
        weights[f"model.layers.0.self_attn.{name}.weight"] = torch.ones(head_dim).numpy()
    return weights


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    safetensors_io.write(FOLDER / "model.safetensors", seed_weights(), {"format": "pt"})


if __name__ == "__main__":
    main()
