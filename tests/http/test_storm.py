"""Everything at once: many clients that do everything to a few sessions, politely and not.

Whatever happened, afterwards every session is at a committed length, equal to a fresh prefill, and
the memory adds up.
"""

import random
import threading

from client import hang_up
from data import PAGE_BYTES, PAGE_POSITIONS, rows
from waiting import eventually

X = rows(64).tolist()
SESSIONS = [f"storm{i}" for i in range(8)]
# Refusals that such a storm is bound to meet.
EXPECTED = {
    "session_not_found",
    "session_busy",
    "cancelled",
    "length_mismatch",
    "invalid_request",
    "kv_budget_exceeded",
    "queue_full",
}


class Storm(threading.Thread):
    """One client's deeds, drawn from a generator of its own."""

    def __init__(self, client, seed, count):
        super().__init__()
        self.client, self.random, self.count = client, random.Random(seed), count
        self.failure = None
        self.start()

    def run(self):
        try:
            for _ in range(self.count):
                deed = self.random.choice(self.DEEDS)
                deed(self, self.random.choice(SESSIONS))
        except BaseException as failure:
            self.failure = failure

    def ask(self, method, path, body=None):
        reply = self.client.request(method, path, body)
        if reply.status >= 400:
            assert reply.json["error"]["code"] in EXPECTED, reply.body
        return reply

    def prefill(self, session):
        count = self.random.randint(1, 60)
        fields = {"session": session, "inputs": X[:count], "output": "none"}
        fields["wait_ms"] = self.random.choice([0, 200])
        self.ask("POST", "/prefill", fields)

    def decode(self, session):
        fields = {"session": session, "steps": self.random.randint(1, 50)}
        fields["wait_ms"] = self.random.choice([0, 200])
        self.ask("POST", "/decode", fields)

    def truncate(self, session):
        length = self.random.randint(0, 40)
        self.ask("POST", f"/sessions/{session}/truncate", {"length": length})

    def cancel(self, session):
        self.ask("POST", f"/sessions/{session}/cancel")

    def verify(self, session):
        reply = self.ask("POST", f"/sessions/{session}/verify")
        assert reply.status != 200 or reply.json["bit_identical"]

    def delete(self, session):
        self.ask("DELETE", f"/sessions/{session}")

    def look(self, session):
        self.ask("GET", f"/sessions/{session}")
        self.client.get("/sessions?limit=3").ok()
        self.client.metrics()

    def leave(self, session):
        """Starts a request and hangs up at some point of it."""
        path, fields = self.random.choice(
            [
                ("/decode", {"session": session, "steps": 3000, "stream": True}),
                ("/decode", {"session": session, "steps": 3000}),
                ("/prefill", {"session": session, "inputs": X * 10, "wait_ms": 100}),
            ]
        )
        connection = self.client.send("POST", path, fields, receive_bytes=4096)
        if self.random.random() < 0.5:
            connection.sock.recv(self.random.randint(1, 2000))
        hang_up(connection.sock, self.random.random() < 0.5)

    DEEDS = [prefill] * 4 + [decode] * 4 + [leave] * 3
    DEEDS += [truncate, truncate, cancel, verify, delete, look, look]


def test_storm(launch):
    client = launch("--threads", 3, "--kv-memory", "4MiB", "--queue", 12).client
    empty = client.totals()
    storms = [Storm(client, seed, 50) for seed in range(12)]
    for storm in storms:
        storm.join()
    for storm in storms:
        if storm.failure:
            raise storm.failure
    eventually(lambda: client.metrics().total("attnd_requests_in_flight") == 0, "all has ended")
    left = client.get("/sessions").ok()
    totals = left["totals"]
    for session in left["sessions"]:
        assert (session["state"], session["in_flight"]) == ("idle", False)
        assert session["kv"]["reserved_bytes"] == 0
        assert session["kv"]["pages"] == -(-session["length"] // PAGE_POSITIONS)
        verified = client.verify(session["session"])
        assert verified["bit_identical"] and verified["length"] == session["length"]
    assert totals["sessions"] == len(left["sessions"])
    assert totals["positions"] == sum(session["length"] for session in left["sessions"])
    assert totals["kv"]["bytes"] == totals["kv"]["pages"] * PAGE_BYTES
    assert totals["kv"]["pages"] == sum(session["kv"]["pages"] for session in left["sessions"])
    for session in left["sessions"]:
        client.delete(session["session"])
    assert client.totals() == empty
