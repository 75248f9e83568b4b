"""Looking inside: asks for tensors and reads them, whatever form they come in."""

import base64
from urllib.parse import quote, urlencode

import numpy as np

import safetensors_io  # of tests/reference, on the path since data was imported

SAFETENSORS = "application/x-safetensors"
MIB = 1 << 20


def path(session, name, **query):
    """The path of GET .../tensors/{name}."""
    target = f"/sessions/{session}/tensors/{quote(name, safe='')}"
    return f"{target}?{urlencode(query, safe=':,')}" if query else target


def array_of(reply):
    """The array of a tensor that came as JSON."""
    values = np.asarray(reply["data"], dtype=object).astype(np.float64)
    dtype = {"F32": np.float32, "U8": np.uint8}[reply["dtype"]]
    array = values.astype(dtype)
    assert list(array.shape) == reply["shape"]
    return array


def get_json(client, session, name, **query):
    """(array, reply) of a tensor as JSON."""
    reply = client.get(path(session, name, **query), Accept="application/json").ok()
    assert (reply["session"], reply["name"]) == (session, name)
    return array_of(reply), reply


def get(client, session, name, **query):
    """(array, metadata) of a tensor as safetensors."""
    reply = client.get(path(session, name, **query), Accept=SAFETENSORS)
    assert reply.status == 200, reply.body[:500]
    assert reply.content_type == SAFETENSORS
    tensors, metadata = safetensors_io.unpack(reply.body)
    assert list(tensors) == [name]
    return tensors[name], metadata


def traced(value):
    """(tensors, metadata) of what a step or a prefill brought."""
    return safetensors_io.unpack(base64.b64decode(value["tensors"], validate=True))


def kinds_of(client, model):
    """The names of a model's tensors without block and layer, as a trace takes them."""
    listed = [entry["name"] for entry in client.get(f"/models/{model}").ok()["tensors"]]
    return [name.rsplit(".", 1)[-1] for name in listed if not is_cache(name)]


def is_cache(name):
    """Whether a tensor is of the cache, which is looked at in the session and never traced."""
    return name.startswith("past_key_values.")


def same(left, right):
    """The same dtype, shape and bits."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


def close(found, expected, tolerance=1e-5):
    """Within the tolerance, and -inf exactly where it is expected."""
    assert found.shape == expected.shape
    hidden = np.isneginf(expected)
    assert (np.isneginf(found) == hidden).all()
    assert np.isfinite(found[~hidden]).all()
    gap = np.abs(found[~hidden].astype(np.float64) - expected[~hidden])
    assert gap.max(initial=0) < tolerance


def strongest(pattern, k):
    """(keys, weights) of the k largest weights of a row, the earlier key of equals first."""
    order = np.argsort(-pattern, kind="stable")[:k]
    return order.tolist(), pattern[order]
