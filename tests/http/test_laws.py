"""The laws that a client can see: splitting (L1), company (L2), the instruction set (L5) and
overflow (L8) change no bit of what a session gets."""

import numpy as np
import pytest

from data import bits, golden, model_flags, outputs_of, same_bits
from process import KERNELS, refuses_kernels
from waiting import all_at_once

MODEL = "chain3"
TENSORS, METADATA = golden(MODEL)
X = TENSORS["inputs"]
LENGTH, HIDDEN = X.shape
PROMPT = 130  # positions that the concurrent sessions prefill before they decode the rest


@pytest.fixture(scope="module")
def laws(launch_for_module):
    """A client of a server with the model of the laws."""
    return launch_for_module(*model_flags(MODEL), "--threads", 2, "--kv-memory", "512MiB").client


@pytest.fixture(scope="module")
def expected(laws):
    """The bits of every output row: one prefill of all rows, nobody else there."""
    reply = laws.prefill(session="expected", inputs=X, output="all")
    return bits(reply["output"])


def in_chunks(client, session, sizes):
    """Output rows of prefills of these sizes, one after another."""
    output, at = [], 0
    for size in sizes:
        reply = client.prefill(session=session, inputs=X[at : at + size], output="all")
        output += reply["output"]
        at += size
    return output


def test_agrees_with_the_reference(expected):
    """Against the same computation in double; the error is measured in the rows' own scale."""
    exact = TENSORS["output64"]
    found = expected.view(np.float32).astype(np.float64)
    error = np.square(found - exact).sum() / np.square(exact).sum()
    assert error < 1e-10


# ------------------------------------------------------------------------------ L1: splitting


@pytest.mark.parametrize("size", [1, 2, 7, 16, 17, 64, 209])
def test_chunked_prefill(laws, expected, sid, size):
    assert LENGTH >= 200
    sizes = [min(size, LENGTH - at) for at in range(0, LENGTH, size)]
    assert (bits(in_chunks(laws, sid, sizes)) == expected).all()
    laws.delete(sid)


def test_odd_chunks(laws, expected, sid):
    generator = np.random.default_rng(5)
    sizes, left = [], LENGTH
    while left:
        sizes.append(int(min(left, generator.integers(1, 40))))
        left -= sizes[-1]
    assert (bits(in_chunks(laws, sid, sizes)) == expected).all()
    laws.delete(sid)


def test_single_steps(laws, expected, sid):
    """One prefilled row, then nothing but decode steps, streamed and not, many and one."""
    output = laws.prefill(session=sid, inputs=X[:1], output="all")["output"]
    stream = laws.stream(session=sid, inputs=X[1:100])
    output += outputs_of(stream.rest())
    output += outputs_of(laws.decode(session=sid, inputs=X[100:200])["events"])
    for row in X[200:]:
        output.append(laws.decode(session=sid, input=row)["output"])
    assert (bits(output) == expected).all()
    laws.delete(sid)


def test_mixed(laws, expected, sid):
    output = in_chunks(laws, sid, [33])
    output += outputs_of(laws.decode(session=sid, inputs=X[33:50])["events"])
    output += laws.prefill(session=sid, inputs=X[50:], output="all")["output"]
    assert (bits(output) == expected).all()
    laws.delete(sid)


def test_truncate_and_replay(laws, expected, sid):
    in_chunks(laws, sid, [LENGTH])
    for length in (200, 129, 128, 127, 16, 1):
        laws.truncate(sid, length)
        step = laws.decode(session=sid, input=X[length])["output"]
        assert (bits(step) == expected[length]).all()
        assert laws.verify(sid)["bit_identical"]
    laws.delete(sid)


# ------------------------------------------------------------------------------- L2: company


@pytest.mark.parametrize("count", [1, 8, 64])
def test_company(laws, expected, sid, count):
    """Concurrent sessions, each at another point of its rows, get the bits that one alone gets."""
    names = [f"{sid}.{i}" for i in range(count)]

    def prefill(i):
        length = PROMPT - i % 50
        reply = laws.prefill(session=names[i], inputs=X[:length], output="all")
        return reply["output"], length

    def decode(i, length):
        reply = laws.decode(session=names[i], inputs=X[length:])
        return outputs_of(reply["events"])

    prefilled = all_at_once([lambda i=i: prefill(i) for i in range(count)])
    before = laws.metrics()
    decoded = all_at_once(
        [lambda i=i, length=length: decode(i, length) for i, (_, length) in enumerate(prefilled)]
    )
    after = laws.metrics()
    for (output, _), rest in zip(prefilled, decoded):
        assert (bits(output + rest) == expected).all()

    # Decode alone has one row a session, so a batch of more rows had several sessions in it.
    def grown(name, **labels):
        return after.total(name, **labels) - before.total(name, **labels)

    batches = grown("attnd_batch_size_count")
    alone = grown("attnd_batch_size_bucket", le="1")
    assert grown("attnd_decode_steps_total") == sum(LENGTH - length for _, length in prefilled)
    if count == 1:
        assert batches == alone == LENGTH - PROMPT
    else:
        assert batches > alone, "no batch held two sessions"
    for name in names:
        laws.delete(name)


def test_prefill_among_decodes(laws, expected, sid):
    """A long prefill beside decoding sessions: neither changes the other."""
    names = [f"{sid}.{i}" for i in range(4)]
    for name in names:
        laws.prefill(session=name, inputs=X[:10], output="none")
    jobs = [lambda name=name: laws.decode(session=name, inputs=X[10:]) for name in names]
    jobs += [lambda i=i: in_chunks(laws, f"{sid}.p{i}", [LENGTH]) for i in range(2)]
    results = all_at_once(jobs)
    for reply in results[:4]:
        assert (bits(outputs_of(reply["events"])) == expected[10:]).all()
    for output in results[4:]:
        assert (bits(output) == expected).all()


def test_nothing_leaks(laws, expected, sid):
    """A session on pages that others have used and left gets the bits of one on fresh pages."""
    generator = np.random.default_rng(9)
    for i in range(8):
        other = generator.uniform(-1e6, 1e6, (LENGTH, HIDDEN)).astype(np.float32)
        laws.prefill(session=f"{sid}.{i}", inputs=other, output="none")
    for i in range(8):
        laws.delete(f"{sid}.{i}")
    assert (bits(in_chunks(laws, sid, [100, 110])) == expected).all()


# -------------------------------------------------------- L2 and L5: threads, instruction sets


def edge_rows():
    """Rows that try the corners of float32: -0, subnormals, huge and equal values."""
    generator = np.random.default_rng(11)
    edge = generator.standard_normal((12, HIDDEN)).astype(np.float32)
    edge[0] = 0.0
    edge[1] = -0.0
    edge[2] = np.float32(1e-45)
    edge[3] = -np.float32(1.1754942e-38)
    edge[4] = np.float32(1e30)
    edge[5, ::2] = np.float32(1e30)
    edge[6, ::3] = -np.float32(1e30)
    edge[7] = edge[8]  # equal keys, equal scores
    edge[9] = np.float32(1e-20)
    edge[10, 1::2] = np.float32(3e-39)
    return edge


def everything(client):
    """The bits of all that the laws' model and the built-in one give."""
    seed_rows = np.random.default_rng(3).standard_normal((40, 16)).astype(np.float32)
    output = client.prefill(session="x", inputs=X[:150], output="all")["output"]
    output += outputs_of(client.decode(session="x", inputs=X[150:])["events"])
    output += outputs_of(client.decode(session="x", steps=20)["events"])
    edge = client.prefill(session="edge", inputs=edge_rows(), output="all")["output"]
    edge += client.prefill(session="edge", inputs=edge_rows(), output="all")["output"]
    edge += outputs_of(client.decode(session="edge", steps=4)["events"])
    seed = client.prefill(session="seed", model="seed-attention", inputs=seed_rows, output="all")[
        "output"
    ]
    seed += outputs_of(client.decode(session="seed", steps=10)["events"])
    for name in ("x", "edge", "seed"):
        assert client.verify(name)["bit_identical"]
        client.delete(name)
    return [bits(output), bits(edge), bits(seed)]


@pytest.fixture(scope="module")
def everything_expected(laws):
    return everything(laws)


def check_everything(found, wanted):
    for one, other in zip(found, wanted):
        assert one.shape == other.shape and (one == other).all()


def test_edge_inputs_are_finite(everything_expected):
    for part in everything_expected:
        assert np.isfinite(part.view(np.float32)).all()


def test_again(laws, everything_expected):
    check_everything(everything(laws), everything_expected)


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_threads(launch, everything_expected, threads):
    client = launch(*model_flags(MODEL), "--threads", threads).client
    assert client.get(f"/models/{MODEL}").ok()["threads"] == threads
    check_everything(everything(client), everything_expected)


@pytest.mark.parametrize("kernels", KERNELS)
def test_kernels(launch, everything_expected, kernels):
    refused = refuses_kernels(kernels)
    if refused:
        pytest.skip(refused)
    client = launch(*model_flags(MODEL), "--threads", 2, "--kernels", kernels).client
    assert client.get(f"/models/{MODEL}").ok()["kernels"] == kernels
    check_everything(everything(client), everything_expected)


@pytest.mark.parametrize("name", ["mha-nonorm", "mqa", "minimind-layer"])
def test_other_shapes(launch, name):
    """Other shapes agree with the reference, split or not, with every instruction set."""
    tensors, metadata = golden(name)
    inputs, exact = tensors["inputs"], tensors["output64"]
    first = int(metadata["first_row"])
    found = []
    for kernels in ("auto", "scalar"):
        client = launch(*model_flags(name), "--kernels", kernels).client
        whole = client.prefill(session="whole", inputs=inputs, output="all")["output"]
        half = len(inputs) // 2
        parts = client.prefill(session="parts", inputs=inputs[:half], output="all")["output"]
        parts += outputs_of(client.decode(session="parts", inputs=inputs[half:])["events"])
        assert same_bits(whole, parts)
        found.append(whole)
    assert same_bits(*found)
    kept = np.asarray(found[0], dtype=np.float64)[first:]
    assert np.square(kept - exact).sum() / np.square(exact).sum() < 1e-10


# ------------------------------------------------------------------------------ L8: overflow

HUGE = 3e38


def overflow_row():
    """A row whose projections overflow, whatever the signs of the weights."""
    return np.where(np.arange(HIDDEN) % 2, HUGE, -HUGE).astype(np.float32)


def test_overflow_in_prefill(laws, expected, sid):
    for at in (0, 5, 39):
        inputs = X[:40].copy()
        inputs[at] = overflow_row()
        reply = laws.post("/prefill", {"session": sid, "inputs": inputs})
        error = reply.error(422, "non_finite", "inputs")
        assert error["details"]["position"] == at
        assert not laws.exists(sid)
    in_chunks(laws, sid, [20])
    inputs = X[20:60].copy()
    inputs[3] = overflow_row()
    reply = laws.post("/prefill", {"session": sid, "inputs": inputs})
    assert reply.error(422, "non_finite", "inputs")["details"]["position"] == 23
    assert laws.session(sid)["length"] == 20
    rest = laws.prefill(session=sid, inputs=X[20:], output="all")["output"]
    assert (bits(rest) == expected[20:]).all()


def test_overflow_in_decode(laws, expected, sid):
    in_chunks(laws, sid, [20])
    reply = laws.post("/decode", {"session": sid, "input": overflow_row()})
    assert reply.error(422, "non_finite", "input")["details"]["position"] == 20
    reply = laws.post("/decode", {"session": sid, "inputs": [overflow_row()], "stream": True})
    assert reply.error(422, "non_finite", "inputs")["details"]["position"] == 20
    assert laws.session(sid)["length"] == 20
    step = laws.decode(session=sid, input=X[20])["output"]
    assert (bits(step) == expected[20]).all()


@pytest.mark.parametrize("streamed", [False, True])
def test_overflow_in_a_later_step(laws, expected, sid, streamed):
    """The steps before it are committed and sent; the run ends with reason error."""
    in_chunks(laws, sid, [20])
    inputs = X[20:30].copy()
    inputs[4] = overflow_row()
    if streamed:
        stream = laws.stream(session=sid, inputs=inputs)
        events = stream.rest()
        done = stream.done
    else:
        done = laws.decode(session=sid, inputs=inputs)
        events = done["events"]
    assert (done["reason"], done["steps"], done["length"]) == ("error", 4, 24)
    assert done["error"]["code"] == "non_finite"
    assert done["error"]["details"]["position"] == 24
    assert (bits(outputs_of(events)) == expected[20:24]).all()
    assert laws.session(sid)["length"] == 24
    step = laws.decode(session=sid, input=X[24])["output"]
    assert (bits(step) == expected[24]).all()
