"""The budget is full and many push: refusals tell the right numbers, what was admitted is finished,
and the server answers meanwhile."""

import random
import threading
import time

import pytest

from client import encode
from data import HIDDEN, INPUT_BYTES, PAGE_POSITIONS, POSITION_BYTES
from waiting import all_at_once, eventually

X = [[0.5] * HIDDEN] * 300
CLIENTS = 200
# A page with its inputs, and its place in the page table.
PAGE_COST = PAGE_POSITIONS * (POSITION_BYTES + INPUT_BYTES) + 4
# A session costs less than this before its first position.
RECORD_MOST = 2048


def pages(positions):
    return -(-positions // PAGE_POSITIONS)


class Health(threading.Thread):
    """Asks for /health as long as the block lasts."""

    def __init__(self, client):
        super().__init__()
        self.client, self.over, self.answers, self.failure = client, threading.Event(), 0, None

    def run(self):
        try:
            while not self.over.is_set() or not self.answers:
                assert self.client.get("/health").ok() == {"status": "ok"}
                self.answers += 1
                time.sleep(0.01)
        except BaseException as failure:
            self.failure = failure

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()
        if self.failure:
            raise self.failure


@pytest.mark.slow
def test_numbers_of_refusals(launch):
    client = launch("--threads", 2, "--kv-memory", "5500KiB").client
    for i in range(CLIENTS):
        client.prefill(session=f"idle{i}", inputs=X[:4], output="none")
    streams = []
    for i in range(8):
        client.prefill(session=f"s{i}", inputs=X[:4], output="none")
        # Not read yet: each is at work to the end of the push.
        streams.append(client.stream(session=f"s{i}", steps=3000, receive_bytes=4096))
    available = client.totals()["available_bytes"]
    too_many = (available // PAGE_COST + 2) * PAGE_POSITIONS

    def push(i):
        count = too_many + i
        if i % 2:
            reply = client.post("/decode", {"session": f"idle{i}", "steps": count})
        else:
            fields = {"session": f"idle{i}", "inputs": X[:1] * count}
            reply = client.post("/prefill", encode(fields))
        details = reply.error(507, "kv_budget_exceeded", "steps" if i % 2 else "inputs")["details"]
        assert details["needed"] == (pages(4 + count) - 1) * PAGE_COST > available
        assert details["available"] == available

    with Health(client):
        all_at_once([lambda i=i: push(i) for i in range(CLIENTS)])
    assert client.totals()["available_bytes"] == available
    for stream in streams:
        assert len(stream.rest()) == 3000
        assert (stream.done["reason"], stream.done["length"]) == ("length", 3004)
    for i in range(CLIENTS):
        assert client.session(f"idle{i}")["length"] == 4


@pytest.mark.slow
def test_push(launch):
    client = launch("--threads", 2, "--kv-memory", "1MiB").client
    empty = client.totals()
    counts = {"admitted": 0, "refused": 0}

    def refused(reply, positions, held=0):
        """Whether it was; if so, in the right words."""
        counts["refused" if reply.status != 200 else "admitted"] += 1
        if reply.status == 200:
            return False
        details = reply.error(507, "kv_budget_exceeded")["details"]
        assert details["available"] < details["needed"]
        assert details["available"] <= empty["available_bytes"]
        cost = (pages(positions) - pages(held)) * PAGE_COST
        assert details["needed"] == cost or (held == 0 and details["needed"] < RECORD_MOST)
        return True

    def push(number):
        draw = random.Random(number)
        for turn in range(3):
            name, length, steps = f"p{number}-{turn}", draw.randint(1, 300), draw.randint(1, 300)
            fields = {"session": name, "inputs": X[:length], "output": "none"}
            reply = client.post("/prefill", encode(fields))
            if refused(reply, length):
                assert not client.exists(name)
                continue
            assert reply.json["length"] == length
            reply = client.post("/decode", {"session": name, "steps": steps})
            if not refused(reply, length + steps, length):
                assert (reply.json["reason"], reply.json["steps"]) == ("length", steps)
            client.delete(name)

    with Health(client):
        all_at_once([lambda i=i: push(i) for i in range(CLIENTS)])
    assert counts["admitted"] > 0 and counts["refused"] > 0
    eventually(lambda: client.totals() == empty, "everything to be given back", within=1)
