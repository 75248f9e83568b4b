"""The load tester: what it measures is so, what it writes is well formed, and it finds errors."""

import csv
import http.client
import json
import os
import re
import signal
import subprocess
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import jsonschema
import pytest

from data import INPUT_BYTES, PAGE_POSITIONS, POSITION_BYTES, REFERENCE
from process import BINARY, REPORT, environment
from waiting import eventually, seconds

LOAD = os.path.join(os.path.dirname(BINARY), "attn-load")
pytestmark = pytest.mark.skipif(not os.path.exists(LOAD), reason="attn-load is not built")

COUNT = {"type": "integer", "minimum": 0}
NUMBER = {"type": "number"}
LATENCY = {"type": "object", "additionalProperties": False, "properties": {"count": COUNT}}
for _name in ("mean", "p50", "p90", "p99", "p999", "max"):
    LATENCY["properties"][_name] = {"type": "number", "minimum": 0}
LATENCY["required"] = list(LATENCY["properties"])
KINDS = ["prefill", "decode", "fork", "truncate", "delete"]


def _object(*counts, **more):
    """A schema of an object with exactly these fields."""
    properties = {**{name: COUNT for name in counts}, **more}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


SCHEMA = _object(
    tool={"const": "attn-load"},
    url={"type": "string"},
    elapsed_s=NUMBER,
    interrupted={"type": "boolean"},
    options={"type": "object"},
    model={"type": "object"},
    sessions=_object("begun", "created", "forked", "deleted", "expired", "lost"),
    requests=_object(*KINDS),
    throughput=_object("steps", "prefilled", steps_per_s=NUMBER, prefilled_per_s=NUMBER),
    refused={"type": "object", "additionalProperties": COUNT},
    errors=_object("connect", "closed", "timeout", "protocol"),
    memory={"type": "object", "required": ["formula_bytes", "reported_bytes", "charged_bytes"]},
    latency_ms={"type": "object", "additionalProperties": LATENCY},
    audit=_object(
        "listed", "other_lengths", "other_bytes", "missing", "shared_bytes", ok={"type": "boolean"}
    ),
    checks=_object(
        "sampled", "recomputed", "verified", "unchecked", mismatches={"type": "array"}
    ),
    series={"type": "array", "minItems": 1},
)


def url_of(server):
    return f"http://{server.host}:{server.port}"


def run(url, *arguments):
    """Runs the load tester to its end."""
    result = subprocess.run(
        [LOAD, "--url", url, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds(60),
        env=environment(),
    )
    assert not REPORT.search(result.stderr), result.stderr
    return result


def load(url, folder, *arguments, status=0):
    """Runs it; returns what it wrote as JSON, which must be as described here."""
    path = folder / "load.json"
    result = run(url, "--json", path, *arguments)
    assert result.returncode == status, result.stdout + result.stderr
    found = json.loads(path.read_text())
    jsonschema.validate(found, SCHEMA)
    assert found["checks"]["recomputed"] > 0 or status != 0
    return found


def test_help():
    result = subprocess.run([LOAD, "--help"], capture_output=True, text=True, timeout=seconds(20))
    assert (result.returncode, result.stderr) == (0, "")
    for flag in ("--url", "--sessions", "--mix", "--check", "--html", "--self-test-mismatch"):
        assert f"{flag} " in result.stdout


@pytest.mark.parametrize(
    "arguments, naming",
    [
        (["--nonsense"], "--nonsense"),
        (["word"], "word"),
        (["--sessions"], "--sessions"),
        (["--sessions", "0"], "--sessions"),
        (["--prompt", "9-3"], "--prompt"),
        (["--prompt", "0"], "--prompt"),
        (["--steps", "1-2-3"], "--steps"),
        (["--mix", "dance=1"], "--mix"),
        (["--mix", "decode=0"], "--mix"),
        (["--output", "some"], "--output"),
        (["--ops", "inf"], "--ops"),
        (["--id", "a/b"], "--id"),
        (["--keep=yes"], "--keep"),
        (["--url", "https://127.0.0.1:1"], "--url"),
        (["--url", "http://127.0.0.1:1"], "--url"),
        (["--model", "nobody"], "--model"),
        (["--kv-dtype", "f7"], "--kv-dtype"),
        (["--json", "/nonexistent/file"], "/nonexistent/file"),
    ],
)
def test_refuses(client, arguments, naming):
    result = run(f"http://{client.host}:{client.port}", *arguments)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and naming in result.stderr, result.stderr


def test_numbers(launch, tmp_path):
    server = launch()
    found = load(url_of(server), tmp_path, "--sessions", 50, "--prompt", 20, "--steps", 10)
    assert found["sessions"]["begun"] == found["sessions"]["created"] == 50
    assert found["requests"] == {**dict.fromkeys(KINDS, 0), "prefill": 50, "decode": 50}
    assert (found["throughput"]["steps"], found["throughput"]["prefilled"]) == (500, 1000)
    assert found["latency_ms"]["ttft"]["count"] == found["latency_ms"]["prefill"]["count"] == 50
    assert found["latency_ms"]["step"]["count"] == 450
    assert found["audit"]["ok"] and found["audit"]["listed"] == 50
    assert found["checks"]["sampled"] == found["checks"]["recomputed"] == 5
    assert found["checks"]["verified"] == 5 and found["checks"]["mismatches"] == []
    memory = found["memory"]
    pages = -(-30 // PAGE_POSITIONS)
    assert memory["formula_kv_bytes"] == 50 * pages * PAGE_POSITIONS * POSITION_BYTES
    assert memory["formula_inputs_bytes"] == 50 * pages * PAGE_POSITIONS * INPUT_BYTES
    assert memory["formula_bytes"] == memory["reported_bytes"] < memory["charged_bytes"]
    assert memory["sessions_left"] == memory["bytes_left"] == 0
    assert server.client.totals()["sessions"] == 0


def test_the_seed_decides(launch, tmp_path):
    server = launch()
    flags = ["--sessions", 30, "--prompt", "1-40", "--steps", "1-20", "--ops", "0-5", "--mix"]
    flags += ["decode=3,prefill=1,truncate=1,delete=1", "--think", "0-3"]
    runs = [
        load(url_of(server), tmp_path, *flags, "--concurrency", width, "--seed", seed)
        for width, seed in ((1, 7), (16, 7), (16, 8))
    ]
    did = [(r["requests"], r["throughput"]["steps"], r["memory"]["positions"]) for r in runs]
    assert did[0] == did[1] != did[2]


def test_everything_at_once(launch, tmp_path):
    server = launch()
    mix = "decode=4,prefill=2,fork=2,truncate=2,delete=1"
    found = load(
        url_of(server), tmp_path, "--pid", server.process.pid, "--sessions", 60, "--mix", mix,
        "--ops", "0-8", "--prompt", "1-40", "--steps", "1-30", "--check", 20, "--live", 40,
        "--rate", 300, "--arrivals", "even",
    )  # fmt: skip
    assert set(found["refused"]) <= {"not_supported"}
    assert all(found["requests"].values())
    assert found["audit"]["ok"] and found["audit"]["listed"] == found["memory"]["sessions"] <= 40
    assert found["checks"]["recomputed"] == 20 and found["checks"]["mismatches"] == []
    assert found["memory"]["process_source"] == "RssAnon + VmSwap"
    assert server.client.totals()["sessions"] == 0


@pytest.mark.parametrize("keep", ["yes", "no"])
def test_every_cache_dtype(launch, tmp_path, keep):
    server = launch()
    model = server.client.get("/models").ok()["models"][0]
    for dtype, position_bytes in model["kv_bytes_per_position"].items():
        found = load(
            url_of(server), tmp_path, "--kv-dtype", dtype, "--sessions", 5, "--keep-inputs", keep
        )
        assert found["memory"]["formula_kv_bytes"] == 5 * 96 * position_bytes
        assert found["memory"]["formula_inputs_bytes"] == (5 * 96 * 64 if keep == "yes" else 0)
        assert found["audit"]["ok"] and found["checks"]["recomputed"] == 5


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_a_language_model(launch, tmp_path, temperature):
    server = launch("--model", REFERENCE / "models" / "llama-gqa", "--random", 1)
    found = load(
        url_of(server), tmp_path, "--model", "llama-gqa", "--temperature", temperature,
        "--sessions", 8, "--prompt", "1-20", "--steps", "1-20", "--ops", "0-4",
        "--mix", "decode=3,prefill=1,truncate=1", "--output", "last",
    )  # fmt: skip
    assert found["throughput"]["steps"] > 0
    assert found["audit"]["ok"] and found["checks"]["recomputed"] == 5


def test_a_full_server_is_no_error(launch, tmp_path):
    server = launch("--kv-memory", "100KiB")
    found = load(url_of(server), tmp_path, "--sessions", 30)
    assert found["refused"]["kv_budget_exceeded"] > 0
    assert found["sessions"]["created"] < 30
    assert found["audit"]["ok"] and found["audit"]["listed"] == found["sessions"]["created"]


def test_expired_sessions_are_no_error(launch, tmp_path):
    server = launch()
    found = load(
        url_of(server), tmp_path, "--sessions", 5, "--ttl", 1, "--ops", 1, "--think", 3000
    )
    assert found["sessions"]["expired"] == 5
    assert found["refused"] == {"session_not_found": 5}


def test_keeps(launch, tmp_path):
    server = launch()
    found = load(url_of(server), tmp_path, "--sessions", 7, "--keep", "--id", "mine")
    assert "sessions_left" not in found["memory"]
    listed = server.client.get("/sessions").ok()["sessions"]
    assert len(listed) == 7
    assert all(re.fullmatch(r"mine\.\d+\.\d+", session["session"]) for session in listed)


class _Links(HTMLParser):
    """Counts elements, and finds what a page would load."""

    def __init__(self):
        super().__init__()
        self.tags, self.loads = {}, []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.loads += [value for name, value in attrs if name in ("src", "href")]


def test_files(launch, tmp_path):
    server = launch()
    result = run(
        url_of(server), "--duration", 2.2, "--think", "1-20", "--ops", "inf", "--check", 1,
        "--csv", tmp_path / "load.csv", "--html", tmp_path / "load.html", "--progress",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr.count("\n") >= 2, "no progress"
    with open(tmp_path / "load.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3
    assert all(float(value) >= 0 for row in rows for value in row.values())
    assert rows[0]["t_s"] == "0.000" and int(rows[-1]["sessions"]) == 8
    assert rows[-1]["formula_kv_bytes"] == rows[-1]["reported_kv_bytes"]
    page = (tmp_path / "load.html").read_text()
    links = _Links()
    links.feed(page)
    assert links.tags["svg"] >= 6 and "script" not in links.tags and links.loads == []
    assert "url(" not in page and "@import" not in page and "prefers-color-scheme:dark" in page


def test_the_self_test_mismatch_is_found(launch, tmp_path):
    found = load(
        url_of(launch()), tmp_path, "--sessions", 3, "--self-test-mismatch", status=2
    )
    (mismatch,) = found["checks"]["mismatches"]
    assert mismatch["session"].startswith("load-") and "operation 0" in mismatch["what"]
    assert found["checks"]["recomputed"] == 2


@pytest.fixture
def between(launch):
    """Starts something between the load tester and a server that changes replies."""
    servers = []

    def start(change):
        server = launch()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                connection = http.client.HTTPConnection(server.host, server.port)
                connection.request(self.command, self.path, body or None)
                reply = connection.getresponse()
                body = change(self.path, body, reply.read())
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                connection.close()

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, *_):
                pass

        proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        proxy.daemon_threads = True
        Thread(target=proxy.serve_forever).start()
        servers.append(proxy)
        return f"http://127.0.0.1:{proxy.server_port}"

    yield start
    for proxy in servers:
        proxy.shutdown()
        proxy.server_close()


def test_one_other_bit_is_found(between, tmp_path):
    def change(path, body, reply):
        """The first digit of a session's first decoded number, except when it is recomputed."""
        if path == "/decode" and b'.alone"' not in body:
            digit = re.search(rb'"output":\[-?(\d)', reply)
            other = b"1" if digit[1] == b"9" else bytes([digit[1][0] + 1])
            return reply[: digit.start(1)] + other + reply[digit.end(1) :]
        return reply

    found = load(between(change), tmp_path, "--sessions", 2, "--check", 2, status=2)
    assert len(found["checks"]["mismatches"]) == 2
    assert all("decode" in mismatch["what"] for mismatch in found["checks"]["mismatches"])


def test_other_bytes_are_found(between, tmp_path):
    def change(path, _, reply):
        return re.sub(rb'"bytes":(\d+)', b'"bytes":1\\1', reply) if "1000" in path else reply

    found = load(between(change), tmp_path, "--sessions", 2, status=2)
    assert not found["audit"]["ok"]
    assert (found["audit"]["other_bytes"], found["audit"]["other_lengths"]) == (2, 0)


def test_a_lost_session_is_found(between, tmp_path):
    def change(path, _, reply):
        return b'{"sessions":[],"next":null}' if "1000" in path else reply

    found = load(between(change), tmp_path, "--sessions", 2, status=2)
    assert found["audit"]["missing"] == 2


def test_a_server_that_ends(launch, tmp_path):
    server = launch()
    command = [LOAD, "--url", url_of(server), "--duration", "30", "--ops", "inf", "--think", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        eventually(lambda: server.client.totals()["positions"] > 1000, "load")
        server.signal(signal.SIGTERM)
        server.wait()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=seconds(30))
    assert process.returncode == 1, out
    assert "(interrupted)" in out


def test_interrupted(launch, tmp_path):
    server = launch()
    path = tmp_path / "load.json"
    command = [LOAD, "--url", url_of(server), "--duration", "60", "--ops", "inf", "--json", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        eventually(lambda: server.client.totals()["positions"] > 1000, "load")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=seconds(30))
    assert process.returncode == 0, out
    found = json.loads(path.read_text())
    assert found["interrupted"] and found["checks"]["recomputed"] == 5
    assert server.client.totals()["sessions"] == 0
