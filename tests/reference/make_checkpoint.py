#!/usr/bin/python3
"""Writes a checkpoint of a random language model: a folder as Hugging Face saves it.

usage: make_checkpoint.py NAME FOLDER [--seed 1] [--dtype f32|f16|bf16] [--norms ones|random]
                          [--shards N]

NAME is one of models/. The folder (made if missing) gets config.json, generation_config.json and
model.safetensors, or N shards with their model.safetensors.index.json. The weights are those of
`--random SEED`, rounded to the dtype; with --norms random those of norms are in [0.5, 1.5).
Run again, it writes the same bytes. Needs numpy, not PyTorch.
"""

import argparse
import json
import sys
from pathlib import Path

import safetensors_io
from decoder_config import Config, random_weights, round_to

MODELS = Path(__file__).resolve().parent / "models"
TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def read_config(name):
    """The config.json of models/<name>, parsed."""
    return json.loads((MODELS / name / "config.json").read_text())


def checkpoint_tensors(name, seed, dtype="f32", norms="ones"):
    """Every tensor of the model by name, as arrays of the dtype that the checkpoint stores."""
    weights = random_weights(seed, Config.from_dict(read_config(name)), norms)
    return {key: round_to(array, dtype) for key, array in weights.items()}


def split(tensors, n_shards):
    """The tensors, in their order, in n_shards dicts of about as many bytes each."""
    total = sum(array.nbytes for array in tensors.values())
    shards = [{} for _ in range(n_shards)]
    before = 0
    for name, array in tensors.items():
        shards[before * n_shards // total][name] = array
        before += array.nbytes
    return shards


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_checkpoint(name, folder, seed=1, dtype="f32", norms="ones", n_shards=1):
    """Writes models/<name> with weights into folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = read_config(name)
    config["dtype" if "dtype" in config else "torch_dtype"] = TORCH_NAMES[dtype]
    write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    write_json(folder / "generation_config.json", {"_from_model_config": True, **ids})

    tensors = checkpoint_tensors(name, seed, dtype, norms)
    metadata = {"format": "pt"}
    if n_shards == 1:
        safetensors_io.write(folder / "model.safetensors", tensors, metadata)
        return
    weight_map = {}
    for i, shard in enumerate(split(tensors, n_shards)):
        file = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        safetensors_io.write(folder / file, shard, metadata)
        weight_map.update(dict.fromkeys(shard, file))
    index = {
        "metadata": {"total_size": sum(array.nbytes for array in tensors.values())},
        "weight_map": dict(sorted(weight_map.items())),
    }
    write_json(folder / "model.safetensors.index.json", index)


def main(arguments):
    parser = argparse.ArgumentParser(description="Writes a checkpoint of a random language model.")
    parser.add_argument("name", help="a folder of models/")
    parser.add_argument("folder", help="where to write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=TORCH_NAMES, default="f32")
    parser.add_argument("--norms", choices=("ones", "random"), default="ones")
    parser.add_argument("--shards", type=int, default=1)
    options = parser.parse_args(arguments)
    write_checkpoint(
        options.name, options.folder, options.seed, options.dtype, options.norms, options.shards
    )


if __name__ == "__main__":
    main(sys.argv[1:])
