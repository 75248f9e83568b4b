#!/usr/bin/python3
"""Loads that take minutes: what they do to a server, and to whoever else is there.

Usage: tests/scenarios.py NAME [VARIABLE=VALUE]...     (or `make scenario NAME="crowd idle=1000"`)

  crowd          idle connections, heads, bodies and readers of a byte a second, beside a client
  cycles         sessions made, filled, decoded and deleted, over and over: does the process grow?
  long-prefill   a long prefill beside decoding sessions
  many           many sessions of a deep model alive at once
  waste          the process's memory beside the bytes of the positions, and after they are deleted

Each starts a server of its own, loads it with clients/load, and prints a table. The exit status is
not 0 when something is wrong; how fast things are is for the reader to judge.
"""

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "http"))

from data import make_model, rows  # noqa: E402
from process import BINARY, Server, environment  # noqa: E402

LOAD = os.path.join(os.path.dirname(BINARY), "attn-load")


class Load:
    """A load tester at work on a server."""

    def __init__(self, server, *flags):
        self.file = tempfile.NamedTemporaryFile(suffix=".json")
        url = f"http://{server.host}:{server.port}"
        own = ["--url", url, "--pid", server.process.pid, "--json", self.file.name]
        self.out = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [LOAD, *map(str, [*own, *flags])],
            stdout=self.out,
            stderr=subprocess.STDOUT,
            env=environment(),
        )

    def wait(self):
        """Waits for its end; returns its results."""
        status = self.process.wait()
        self.out.seek(0)
        self.text = self.out.read()
        if status != 0:
            sys.exit(f"attn-load ended with {status}:\n{self.text}")
        return json.loads(Path(self.file.name).read_text())

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def count(pid, what):
    return len(os.listdir(f"/proc/{pid}/{what}"))


def mib(count_of_bytes):
    return f"{count_of_bytes / 2**20:.1f} MiB"


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def print_latencies(title, results):
    latency = results["latency_ms"]
    cells = [f"{title:22}", f"{results['throughput']['steps_per_s']:10.0f} steps/s"]
    for name in ("ttft", "step"):
        numbers = " / ".join(f"{latency[name][key]:.2f}" for key in ("p50", "p99", "max"))
        cells.append(f"{name} {numbers} ms")
    print("  ".join(cells), flush=True)


# --------------------------------------------------------------------------------------- crowd


# An idle connection is used once in so many seconds, lest the server close it.
IDLE_SECONDS = 20


class Slow:
    """A connection of the crowd, of which `step` does a little every second."""

    def __init__(self, crowd, kind):
        self.crowd, self.kind, self.sock = crowd, kind, None

    def open(self):
        self.sock = socket.socket()
        if self.kind == "reader":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.settimeout(20)
        self.sock.connect(self.crowd.address)
        self.sock.sendall(self.crowd.greeting(self))
        self.sock.setblocking(False)
        self.used = time.monotonic()

    def step(self):
        """False when the server has closed it."""
        try:
            if self.kind in ("head", "body"):
                return self.sock.send(b"a") == 1
            if self.kind == "reader":
                return self.sock.recv(1) != b""
            if time.monotonic() < self.used + IDLE_SECONDS:
                return True
            if self.sock.recv(4096) == b"":
                return False
            self.sock.send(self.crowd.greeting(self))
            self.used = time.monotonic()
            return True
        except BlockingIOError:
            return True
        except OSError:
            return False


class Crowd(threading.Thread):
    """Keeps so many connections of each kind open until it is told to stop."""

    def __init__(self, server, **counts):
        super().__init__(daemon=True)
        self.address, self.client = (server.host, server.port), server.client
        self.members = [Slow(self, kind) for kind, n in counts.items() for _ in range(n)]
        self.closed = dict.fromkeys(counts, 0)
        self.stopping, self.n_sessions = threading.Event(), 0

    def greeting(self, member):
        host = f"Host: {self.address[0]}\r\n"
        if member.kind == "idle":
            return f"GET /health HTTP/1.1\r\n{host}\r\n".encode()
        if member.kind == "head":
            return f"GET /health HTTP/1.1\r\n{host}X-Slow: ".encode()
        if member.kind == "body":
            return f"POST /prefill HTTP/1.1\r\n{host}Content-Length: 99999\r\n\r\n{{".encode()
        self.n_sessions += 1
        name = f"reader-{self.n_sessions}"
        self.client.prefill(session=name, model="seed-attention", inputs=rows(4).tolist())
        body = json.dumps({"session": name, "steps": 4000, "stream": True})
        return f"POST /decode HTTP/1.1\r\n{host}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    def begin(self):
        """Returns when all are open and the readers have got all that is made ahead for them."""
        self.start()
        while self.members[-1].sock is None:
            time.sleep(0.1)
        steps, before = 0, -1
        while steps != before:
            time.sleep(1)
            steps, before = self.client.metrics().total("attnd_decode_steps_total"), steps

    def run(self):
        n, turn = len(self.members), 0
        while not self.stopping.wait(0.01):  # each member once a second
            for member in self.members[turn * n // 100 : (turn + 1) * n // 100]:
                if member.sock is None:
                    member.open()
                elif not member.step():
                    self.closed[member.kind] += 1
                    member.sock.close()
                    member.open()
            turn = (turn + 1) % 100

    def end(self):
        self.stopping.set()
        self.join()
        for member in self.members:
            member.sock.close()


def ping(server, stop, times):
    """Asks for /health ten times a second."""
    while not stop.wait(0.1):
        begin = time.monotonic()
        server.client.get("/health").ok()
        times.append((time.monotonic() - begin) * 1000)


def measure(server, title, duration):
    stop, times = threading.Event(), []
    pinger = threading.Thread(target=ping, args=(server, stop, times))
    pinger.start()
    flags = ["--concurrency", 8, "--prompt", 32, "--steps", 32, "--ops", "inf", "--check", 3]
    results = Load(server, "--duration", duration, *flags).wait()
    stop.set()
    pinger.join()
    print_latencies(title, results)
    health = " / ".join(f"{quantile(times, q):.2f}" for q in (0.5, 0.99, 1))
    memory = mib(anonymous_bytes(server.process.pid))
    print(f"{'':22}  /health {health} ms of {len(times)}, process {memory}", flush=True)


def crowd(idle=5000, heads=500, bodies=500, readers=100, seconds=30):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    needed = idle + heads + bodies + readers
    if limit < needed + 200:
        sys.exit(f"{needed} connections need more descriptors than {limit} (ulimit -n)")
    server = Server("--kv-memory", "256MiB", "--log-level", "warn")
    print("p50 / p99 / max", flush=True)
    measure(server, "alone", seconds)
    others = Crowd(server, idle=idle, head=heads, body=bodies, reader=readers)
    others.begin()
    print(f"beside {idle} idle connections, {heads} heads and {bodies} bodies of a byte a second, "
          f"{readers} readers of a byte a second:")  # fmt: skip
    measure(server, "beside them", seconds)
    others.end()
    print(f"closed by the server meanwhile: {others.closed}")
    measure(server, "alone again", seconds)
    server.stop()


# -------------------------------------------------------------------------------------- cycles


def slope(points):
    """Least squares of (x, y)."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum(
        (x - mean_x) ** 2 for x, _ in points
    )


def cycles(sessions=200000, concurrency=16):
    server = Server("--kv-memory", "64MiB", "--log-level", "warn")
    pid = server.process.pid
    idle = count(pid, "fd"), count(pid, "task")
    flags = ["--prompt", "1-16", "--steps", "1-8", "--ops", 1, "--live", concurrency, "--check", 9]
    load = Load(server, "--sessions", sessions, "--concurrency", concurrency, *flags)
    begin, points = time.monotonic(), []
    while load.process.poll() is None:
        time.sleep(0.5)
        deleted = server.client.metrics().total(
            "attnd_requests_total", route="/sessions/{id}", code="204"
        )
        points.append((deleted, anonymous_bytes(pid)))
    results = load.wait()
    elapsed = time.monotonic() - begin
    totals = server.client.totals()
    while (count(pid, "fd"), count(pid, "task")) != idle and time.monotonic() < begin + elapsed + 9:
        time.sleep(0.1)
    after = count(pid, "fd"), count(pid, "task")
    half = points[len(points) // 2 :]
    print(
        f"{results['sessions']['created']} sessions made, {results['sessions']['deleted']} deleted "
        f"in {elapsed:.0f} s, {results['throughput']['steps']} steps\n"
        f"process: {mib(points[0][1])} at first, {mib(max(y for _, y in points))} at most, "
        f"{mib(points[-1][1])} at the end, {mib(anonymous_bytes(pid))} afterwards\n"
        f"slope over the second half: {slope(half) * 10000 / 1024:+.2f} KiB in 10,000 cycles\n"
        f"descriptors {idle[0]} before, {after[0]} after; threads {idle[1]} before, {after[1]} after"
    )
    server.stop()
    assert after == idle and totals["sessions"] == 0
    assert totals["available_bytes"] == totals["budget_bytes"]


# -------------------------------------------------------------------------------- long prefill

# The shape of MiniMind-3.
MINIMIND = {
    "model_type": "minimind",
    "vocab_size": 6400,
    "hidden_size": 768,
    "intermediate_size": 2432,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 96,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def long_prefill(model="minimind", positions=16384, decoding=32, seconds=20, threads=None):
    with tempfile.TemporaryDirectory() as folder:
        served = Path(folder) / "minimind"
        served.mkdir()
        (served / "config.json").write_text(json.dumps(MINIMIND))
        own = ["--model", served, "--random", 1, *(["--threads", threads] if threads else [])]
        server = Server("--kv-memory", "4GiB", "--log-level", "warn", *own)
        flags = ["--model", model, "--check", 0, "--timeout", 3600]
        decode = ["--concurrency", decoding, "--prompt", 4, "--steps", 64, "--ops", "inf"]
        print("p50 / p99 / max", flush=True)
        alone = Load(server, *flags, *decode, "--duration", seconds).wait()
        print_latencies(f"{decoding} decoding", alone)
        others = Load(server, *flags, *decode, "--duration", 100000)
        # Begun anew for so long; the last one is waited for.
        prefill = ["--concurrency", 1, "--prompt", positions, "--ops", 0, "--live", 1]
        long = Load(server, *flags, *prefill, "--duration", seconds).wait()
        others.interrupt()
        beside = others.wait()
        print_latencies("beside prefills", beside)
        ratio = beside["latency_ms"]["step"]["p99"] / alone["latency_ms"]["step"]["p99"]
        print(
            f"{long['sessions']['created']} prefills of {positions} positions in "
            f"{long['elapsed_s']:.0f} s; p99 of a step {ratio:.1f} times what it is alone"
        )
        server.stop()


# ---------------------------------------------------------------------------------------- many


def many(sessions=20000, positions=64, check=500, kv_memory="17GiB"):
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "minimind-8", 8)
        server = Server("--kv-memory", kv_memory, "--log-level", "warn", *model)
        flags = ["--kv-dtype", "f16", "--keep-inputs", "no", "--prompt", positions, "--ops", 0]
        flags += ["--output", "last", "--check", check, "--concurrency", 4, "--timeout", 600]
        load = Load(server, "--model", "minimind-8", "--sessions", sessions, *flags)
        load.wait()
        print(load.text)
        server.stop()


# ------------------------------------------------------------------------------------- waste

# Bounds of what the process may need above the positions' own bytes, by the lengths of sessions.
WASTE = {"128-512": 0.04, "32-63": 0.18}


def waste(sessions=400):
    """A position takes 4 KiB."""
    with tempfile.TemporaryDirectory() as folder:
        shape = {"hidden": 64, "heads": 8, "kv_heads": 8, "head_dim": 16}
        model = make_model(Path(folder) / "small", 4, **shape)
        for lengths, bound in WASTE.items():
            server = Server("--kv-memory", "2GiB", "--log-level", "warn", *model)
            pid, bytes_of = server.process.pid, 2 * 4 * 8 * 16 * 4
            flags = ["--keep-inputs", "no", "--ops", 0, "--output", "none", "--keep"]
            flags += ["--model", "small", "--sessions", sessions, "--prompt", lengths]
            idle = anonymous_bytes(pid)
            Load(server, "--check", 0, *flags).wait()
            needed = server.client.totals()["positions"] * bytes_of
            used = anonymous_bytes(pid) - idle
            listed = server.client.get("/sessions?limit=1000").ok()["sessions"]
            for session in listed:
                server.client.delete(session["session"])
            time.sleep(1)
            left = anonymous_bytes(pid) - idle
            print(
                f"{len(listed)} sessions of {lengths} positions: {mib(needed)} of positions, the "
                f"process {100 * (used / needed - 1):.1f} % more; {mib(left)} left when deleted",
                flush=True,
            )
            server.stop()
            assert used <= (1 + bound) * needed, f"more than {100 * bound:.0f} %"
            assert left <= 8 << 20


SCENARIOS = {
    "crowd": crowd,
    "cycles": cycles,
    "long-prefill": long_prefill,
    "many": many,
    "waste": waste,
}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in SCENARIOS:
        sys.exit(__doc__)
    variables = {}
    for argument in sys.argv[2:]:
        name, value = argument.split("=", 1)
        variables[name] = int(value) if value.isdigit() else value
    SCENARIOS[sys.argv[1]](**variables)


if __name__ == "__main__":
    main()
