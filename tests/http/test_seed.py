"""The ten attention calls of the tutorial, live: what PyTorch computed, within 1e-5."""

import numpy as np
import pytest

from data import bits, golden, outputs_of

TOLERANCE = 1e-5


def close(found, expected):
    assert np.shape(found) == expected.shape
    assert np.abs(np.asarray(found, dtype=np.float64) - expected).max() < TOLERANCE


@pytest.mark.parametrize("entry", [0, 1])
def test_example5_whole_forward_pass(client, sid, entry):
    """A batch of two is two sessions."""
    tensors, _ = golden("example5")
    inputs = tensors["call0.inputs"][entry]
    reply = client.prefill(session=sid, model="seed-attention", inputs=inputs, output="all")
    assert reply["length"] == reply["appended"] == 6
    close(reply["output"], tensors["call0.output"][entry])


def test_example6_prefill_then_decode(client, sid):
    tensors, metadata = golden("example6")
    assert metadata["calls"] == "4"
    inputs = tensors["call0.inputs"][0]
    reply = client.prefill(session=sid, model="seed-attention", inputs=inputs, output="all")
    assert reply["length"] == 4
    close(reply["output"], tensors["call0.output"][0])
    for i in (1, 2, 3):
        reply = client.decode(session=sid, input=tensors[f"call{i}.inputs"][0, 0])
        assert reply["length"] == 4 + i
        close(reply["output"], tensors[f"call{i}.output"][0, 0])
    assert client.session(sid)["length"] == 7


def test_example7_cache_changes_nothing(client, sid):
    """The tutorial's claim, exactly: with and without the cache the difference is 0."""
    tensors, _ = golden("example7")
    whole = client.prefill(
        session=f"{sid}.whole",
        model="seed-attention",
        inputs=tensors["whole.inputs"][0],
        output="all",
    )
    close(whole["output"], tensors["whole.output"][0])

    prefill = client.prefill(
        session=sid, model="seed-attention", inputs=tensors["call0.inputs"][0], output="all"
    )
    close(prefill["output"], tensors["call0.output"][0])
    stream = client.stream(
        session=sid, inputs=[tensors[f"call{i}.inputs"][0, 0] for i in (1, 2, 3)]
    )
    steps = stream.rest()
    for i, step in enumerate(steps, 1):
        close(step["output"], tensors[f"call{i}.output"][0, 0])

    cached = prefill["output"] + outputs_of(steps)
    assert np.abs(np.subtract(cached, whole["output"])).max() == 0
    assert (bits(cached) == bits(whole["output"])).all()
