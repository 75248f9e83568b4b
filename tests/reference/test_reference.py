"""Checks the reference itself: philox, safetensors, RoPE, cache, and that the goldens are its own.

Language models: test_decoder.py.

Run: /usr/bin/python3 -m pytest tests/reference
"""

import json
from pathlib import Path

import numpy as np
import pytest

import philox
import safetensors_io

HERE = Path(__file__).resolve().parent
GOLDENS = HERE / "goldens"
ONES = 0xFFFFFFFF


# The vectors published with the authors' Random123 library.
@pytest.mark.parametrize(
    "counter, key, expected",
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_vectors(counter, key, expected):
    assert philox.philox4x32(counter, key).tolist() == expected


def test_fnv1a64_vectors():
    assert philox.fnv1a64("") == 0xCBF29CE484222325
    assert philox.fnv1a64("foobar") == 0x85944171F73967E8


def test_uniform_elements_depend_on_index_alone():
    long = philox.uniform(3, "t", (10, 3)).reshape(-1)
    assert long.dtype == np.float32
    assert np.array_equal(long[:7], philox.uniform(3, "t", (7,)))
    assert -1 <= long.min() and long.max() < 1
    assert not np.array_equal(long, philox.uniform(3 + 2**32, "t", (30,)))
    assert not np.array_equal(long, philox.uniform(3, "u", (30,)))


def test_safetensors_round_trip():
    tensors = {
        "bytes": np.arange(3, dtype=np.uint8),
        "wide": np.arange(6, dtype=np.float64).reshape(2, 3),
        "half": np.array([1.5], dtype=np.float16),
        "scalar": np.float32(-0.0),
        "bf16": np.array([0x3F80], dtype=np.uint16).view(safetensors_io.BF16),
        "empty": np.zeros((0, 4), dtype=np.int64),
    }
    data = safetensors_io.pack(tensors, {"k": "v"})
    assert int.from_bytes(data[:8], "little") % 8 == 0
    again, metadata = safetensors_io.unpack(data)
    assert metadata == {"k": "v"}
    assert again.keys() == tensors.keys()
    for name, array in tensors.items():
        assert again[name].dtype == np.asarray(array).dtype
        assert again[name].shape == np.shape(array)
        assert again[name].tobytes() == array.tobytes()
    for n_bytes in range(len(data)):
        with pytest.raises(ValueError):
            safetensors_io.unpack(data[:n_bytes])
    with pytest.raises(ValueError):
        safetensors_io.unpack(data + b"\0")


def test_rope_pairs_are_half_a_head_apart():
    torch = pytest.importorskip("torch")
    from seed_attention import rope_tables, rotate

    # head_dim 4, theta 100: the pairs (0, 2) and (1, 3) turn by 1 and by 1/10 a position.
    cos, sin = rope_tables([3], 4, 100.0)
    x = torch.tensor([1.0, 0.0, 0.0, 1.0]).view(1, 1, 1, 4)
    expected = [np.cos(3.0), -np.sin(0.3), np.sin(3.0), np.cos(0.3)]
    assert np.allclose(rotate(x, cos, sin).flatten(), expected, atol=1e-7)


def test_splitting_changes_only_rounding():
    torch = pytest.importorskip("torch")
    from seed_attention import Config, SeedAttention

    config = json.loads((HERE / "models" / "chain3" / "config.json").read_text())
    weights = philox.attention_weights(1, config)
    model = SeedAttention(Config.from_dict(config), weights, torch.float64)
    inputs = torch.from_numpy(philox.uniform(1, "inputs", (2, 9, config["hidden_size"])))
    whole, whole_cache = model.forward(inputs)
    cache = None
    parts = []
    for chunk in inputs.split([4, 1, 3, 1], dim=1):
        output, cache = model.forward(chunk, cache)
        parts.append(output)
    assert torch.allclose(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)
    for layer, layer_whole in zip(cache, whole_cache):
        for tensor, tensor_whole in zip(layer, layer_whole):
            assert torch.allclose(tensor, tensor_whole, rtol=0, atol=1e-12)


def test_goldens_are_what_the_scripts_make(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    import make_goldens
    import make_seed_model

    committed_model = make_seed_model.FOLDER
    monkeypatch.setattr(make_goldens, "GOLDENS", tmp_path)
    monkeypatch.setattr(make_seed_model, "FOLDER", tmp_path / "model")
    make_goldens.main()
    make_seed_model.main()

    of_language_models = ("lm-", "trace-lm-")
    committed = [path for path in GOLDENS.iterdir() if not path.name.startswith(of_language_models)]
    assert {path.name for path in tmp_path.glob("*.safetensors")} == {
        path.name for path in committed
    }
    # Another machine's matrix product may round differently: close, not equal.
    for path in committed:
        tensors, metadata = safetensors_io.read(path)
        again, metadata_again = safetensors_io.read(tmp_path / path.name)
        assert metadata == metadata_again
        assert tensors.keys() == again.keys()
        for name in tensors:
            assert np.allclose(tensors[name], again[name], rtol=0, atol=2e-6), (path.name, name)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "model" / name).read_bytes() == (committed_model / name).read_bytes()
