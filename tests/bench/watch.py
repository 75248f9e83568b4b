#!/usr/bin/env python3
"""What watchers cost: steps/s of one busy session with none, and with 16 of which one reads 1 KB/s.

    tests/bench/watch.py [BINARY [SERVER_CPUS WATCHER_CPUS]]

The runs alternate and the median counts. For a fair picture the server and the watchers run on
different CPUs ("0-3" "4-7"), and nothing else runs.
"""

import json
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

STEPS, ROUNDS, WATCHERS = 200, 7, 16
CONFIG = {
    "model_type": "attention",
    "hidden_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 96,
    "num_hidden_layers": 8,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "qk_norm": True,
    "torch_dtype": "float32",
}
QUERY = "session=a&tensors=hook_pattern,hook_rot_q&layers=0,3&dtype=U8&fps=30"


def cpus(text):
    first, _, last = text.partition("-")
    return set(range(int(first), int(last or first) + 1))


def watch(port, ready):
    """In a process of its own: reads all that comes for 15 watchers, and 1 KB/s for one."""
    selector = selectors.DefaultSelector()
    socks = []
    for i in range(WATCHERS):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(f"GET /watch?{QUERY} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert sock.recv(64).startswith(b"HTTP/1.1 200"), "refused"
        socks.append(sock)
        if i:
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ)
    os.write(ready, b"x")
    due = time.monotonic()
    while True:
        for key, _ in selector.select(0.2):
            key.fileobj.recv(1 << 20)
        if time.monotonic() >= due:
            due += 1
            socks[0].recv(1024)


def start_watchers(port, on):
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        if on:
            os.sched_setaffinity(0, on)
        watch(port, done)
    os.read(ready, 1)
    os.close(ready)
    os.close(done)
    time.sleep(0.5)
    return child


def request(url, method="POST", body=None):
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}, method=method)) as reply:
        return reply.read().decode()


def busy(url):
    """Of one run: steps a second, as its client sees it, and the server's CPU time a step, in ms."""
    cpu, start = metric(url, "process_cpu_seconds_total"), time.monotonic()
    request(url + "/decode", body={"session": "a", "steps": STEPS})
    rate = STEPS / (time.monotonic() - start)
    cpu = metric(url, "process_cpu_seconds_total") - cpu
    request(url + "/sessions/a/truncate", body={"length": 64})
    return rate, 1000 * cpu / STEPS


def metric(url, name):
    text = request(url + "/metrics", "GET")
    return float(text.split(f"\nattnd_{name} ")[1].split()[0])


def resident(url):
    return metric(url, "process_resident_memory_bytes") / 2**20


def main(binary="build/release/attnd", server_cpus=None, watcher_cpus=None):
    folder = Path(tempfile.mkdtemp()) / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    server = subprocess.Popen(
        [binary, "--port", "0", "--model", folder, "--random", "1", "--log-level", "error"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=server_cpus and (lambda: os.sched_setaffinity(0, cpus(server_cpus))),
    )
    url = server.stdout.readline().split()[-1]
    port = int(url.rsplit(":", 1)[1])
    rows = [[0.01 * (i + j) for j in range(768)] for i in range(64)]
    request(url + "/prefill", body={"session": "a", "inputs": rows, "output": "none"})
    busy(url)
    rates = {0: [], WATCHERS: []}
    before = resident(url)
    for _ in range(ROUNDS):
        rates[0].append(busy(url))
        child = start_watchers(port, watcher_cpus and cpus(watcher_cpus))
        rates[WATCHERS].append(busy(url))
        after = resident(url)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        time.sleep(0.5)
    for count, found in rates.items():
        steps, cpu = zip(*found)
        print(f"{count:2} watchers: median {statistics.median(steps):.1f} steps/s", end="")
        print(f" ({min(steps):.1f} .. {max(steps):.1f}), {statistics.median(cpu):.2f} ms CPU a step")
    medians = {count: statistics.median(found)[0] for count, found in rates.items()}
    cost = 1 - medians[WATCHERS] / medians[0]
    print(f"cost {100 * cost:.1f} %; resident memory {before:.0f} MiB, then {after:.0f} MiB")
    server.terminate()
    server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
