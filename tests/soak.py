#!/usr/bin/python3
"""Load for a long time, with clients that are killed, and then: is anything left behind?

Usage: tests/soak.py [SECONDS [SEED]]     (or `make soak SOAK_SECONDS=120`)

A server with a small budget serves round after round of load testers (clients/load) that do
everything; some are killed in mid-flight, some leave their sessions to expire. After each round
sampled sessions must verify, everything is deleted, and then no session, no byte of the budget, no
descriptor and no thread may be left. In the end the process may not have grown, and must stop
cleanly.
"""

import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "http"))

from data import REFERENCE  # noqa: E402
from process import BINARY, REPORT, Server, environment  # noqa: E402
from waiting import SLOWDOWN, eventually, seconds  # noqa: E402

LOAD = os.path.join(os.path.dirname(BINARY), "attn-load")
LANGUAGE_MODEL = REFERENCE / "models" / "llama-gqa"
ROWS, TOKENS = ["--model", "seed-attention"], ["--model", LANGUAGE_MODEL.name]
EVERYTHING = "decode=6,prefill=3,fork=2,truncate=2,delete=1"
# The process may still grow by this much after it has seen every load: what the allocator keeps
# depends on which ones meet.
GROWTH_BYTES = 12 << 20

LOADS = [
    [*ROWS, "--mix", EVERYTHING, "--ops", "0-12", "--prompt", "1-200", "--live", 100],
    [*ROWS, "--mix", EVERYTHING, "--ops", "0-6", "--rate", 100, "--think", "0-500", "--live", 200],
    [*ROWS, "--mix", EVERYTHING, "--ops", "0-4", "--ttl", 1, "--think", "0-900", "--rate", 60],
    [*ROWS, "--mix", "decode=4,prefill=1,truncate=1", "--ops", "0-6", "--keep-inputs", "no"],
    [*ROWS, "--ops", "inf", "--steps", "100-2000", "--concurrency", 4],
    [*ROWS, "--prompt", "500-3000", "--ops", 0, "--concurrency", 3, "--live", 4, "--output", "all"],
    [*ROWS, "--concurrency", 200, "--prompt", "1-8", "--steps", "1-4", "--live", 300],
    [*TOKENS, "--mix", EVERYTHING, "--ops", "0-8", "--prompt", "1-60"],
    [*TOKENS, "--temperature", 0.9, "--ops", "inf", "--steps", "1-200"],
]
WARM_UP = len(LOADS) // 3  # rounds


class Load:
    """A running load tester, which will be killed or left alone."""

    def __init__(self, server, name, flags, duration, kill_after):
        self.name, self.kill_at = name, kill_after and time.monotonic() + kill_after
        self.out = open(os.path.join("/tmp", f"attnd-{name}-{os.getpid()}.log"), "w+")
        os.unlink(self.out.name)
        url = f"http://{server.host}:{server.port}"
        command = [LOAD, "--url", url, "--id", name, "--duration", duration, "--check", 3, *flags]
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=subprocess.STDOUT,
            env=environment(),
        )

    def wait(self, within):
        """Waits for its end, or ends it. Returns whether it was killed."""
        killed = False
        if self.kill_at:
            time.sleep(max(0, self.kill_at - time.monotonic()))
            killed = self.process.poll() is None
            self.process.kill()
        status = self.process.wait(within)
        self.out.seek(0)
        text = self.out.read()
        self.out.close()
        assert killed or status == 0, f"{self.name} ended with {status}:\n{text}"
        assert not REPORT.search(text), text
        return killed


def all_sessions(client):
    """The ids of all sessions."""
    ids, after = [], ""
    while True:
        page = client.get(f"/sessions?limit=1000{after}").ok()
        ids += [session["session"] for session in page["sessions"]]
        if page["next"] is None:
            return ids
        after = f"&after={page['next']}"


def is_idle(client):
    metrics = client.metrics()
    kinds = ("prefill", "decode", "verify")
    return not any(metrics.get_value("attnd_requests_in_flight", kind=kind) for kind in kinds)


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def verify_some(client, ids, count, rng):
    """Has sampled sessions verified; returns how many were."""
    verified = 0
    for session in rng.sample(ids, min(count, len(ids))):
        reply = client.post(f"/sessions/{session}/verify")
        if reply.status == 200:
            assert reply.json["bit_identical"], f"{session}: {reply.json}"
            verified += 1
        else:  # expired meanwhile, made without its inputs, or no room for a second copy
            code = reply.json["error"]["code"]
            assert code in ("session_not_found", "inputs_not_kept", "kv_budget_exceeded"), code
    return verified


def is_empty(client):
    totals = client.totals()
    counts = [totals["sessions"], totals["positions"], totals["inputs_bytes"]]
    counts += [totals["kv"][name] for name in ("bytes", "shared_bytes", "reserved_bytes")]
    return not any(counts) and totals["available_bytes"] == totals["budget_bytes"]


def delete_all(client, expiring):
    """Deletes everything: then nothing is left at once, or soon when some sessions had expired,
    which are no longer listed but wait to be removed."""
    for session in all_sessions(client):
        status = client.request("DELETE", f"/sessions/{session}").status
        assert status in (204, 404), f"DELETE {session}: {status}"
    if expiring:
        eventually(lambda: is_empty(client), "expired sessions to be removed")
    assert is_empty(client), client.totals()


def run_round(server, number, duration, idle_descriptors, rng):
    """One round of load; returns a line about it."""
    loads, expiring = [], False
    for i in range(3):
        kill_after = rng.choice([None, rng.uniform(0.2, duration)])
        flags = rng.choice(LOADS)
        if number < WARM_UP:  # every load once, so that the process has seen what comes
            kill_after, flags = None, LOADS[3 * number + i]
        expiring |= "--ttl" in flags
        seed = rng.randrange(1 << 32)
        name = f"soak-{number}-{i}"
        flags = [*flags, "--seed", seed, *(["--keep"] if i == 0 else [])]
        loads.append(Load(server, name, flags, duration, kill_after))
    loads.sort(key=lambda load: load.kill_at or float("inf"))
    killed = sum(load.wait(seconds(duration + 120)) for load in loads)
    # What killed clients had sent may still be served, as long as their connections are there.
    pid = server.process.pid
    eventually(lambda: descriptors(pid) <= idle_descriptors, "connections to be closed", within=30)
    eventually(lambda: is_idle(server.client), "the requests of killed clients to end", within=30)
    ids = all_sessions(server.client)
    verified = verify_some(server.client, ids, 5, random.Random(number))
    delete_all(server.client, expiring)
    return f"{killed} of 3 killed, {len(ids)} sessions left to delete, {verified} verified"


def slope(values):
    """Least squares, per step."""
    n = len(values)
    mean_x, mean_y = (n - 1) / 2, sum(values) / n
    return sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values)) / max(
        1, sum((x - mean_x) ** 2 for x in range(n))
    )


def soak(server, duration, rng):
    """Rounds of load for so long; returns the process's memory after each."""
    pid, end = server.process.pid, time.monotonic() + duration
    idle_threads, idle_descriptors = threads(pid), descriptors(pid)
    round_s = min(6.0, max(2.0, duration / 6))
    memory = []
    while time.monotonic() < end or len(memory) < WARM_UP + 2:
        line = run_round(server, len(memory), round_s, idle_descriptors, rng)
        eventually(lambda: descriptors(pid) <= idle_descriptors, "descriptors to be closed")
        assert threads(pid) == idle_threads, f"{threads(pid)} threads"
        memory.append(anonymous_bytes(pid))
        print(f"round {len(memory)}: {line}, process {memory[-1] / 2**20:.1f} MiB", flush=True)
    return memory


def main():
    duration = float(sys.argv[1]) if len(sys.argv) > 1 else 120
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    print(f"soak: {duration:.0f} s, seed {seed}", flush=True)
    server = Server(
        "--kv-memory", "24MiB", "--max-sessions", 2000, "--queue", 256, "--threads", 2,
        "--model", LANGUAGE_MODEL, "--random", 1, "--log-level", "warn",
    )  # fmt: skip
    try:
        memory = soak(server, duration, random.Random(seed))
    except BaseException:
        server.process.kill()
        print(server.stderr(), file=sys.stderr)
        raise
    half = WARM_UP + (len(memory) - WARM_UP) // 2
    grown = max(memory[half:]) - max(memory[:half])
    per_round = slope(memory[half:]) / 1024
    server.stop()
    print(f"growth {grown / 1024:.0f} KiB, at the end {per_round:+.1f} KiB a round")
    # Sanitizers keep what was freed for a while.
    assert SLOWDOWN > 1 or grown <= GROWTH_BYTES, f"the process grew: {memory}"
    print("soak ok: nothing left behind, exit 0")


if __name__ == "__main__":
    main()
