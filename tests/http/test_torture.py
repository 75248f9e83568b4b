"""Every allocation of the server fails once, alone and with all that follow it.

An error or the right answer comes of it, nothing of what it was for is left, and the next request is
served. The server is one whose allocations fail as a file says (tests/torture).
"""

import collections
import ctypes
import http.client
import itertools
import mmap
import os
import signal
import subprocess

import pytest

import contract
from client import Reply, encode
from data import REFERENCE, rows
from inside import SAFETENSORS
from language import copy_model, edit_json
from process import BINARY, REPORT, Server, environment
from waiting import SLOWDOWN, eventually, seconds
from watching import FRAMES, Watch

import safetensors_io

TORTURED = os.path.join(os.path.dirname(BINARY), "torture", "attnd")
pytestmark = pytest.mark.skipif(not os.path.exists(TORTURED), reason="not built: torture/attnd")

X = rows(40).tolist()
TEXT = "the rain in the thin lane \u00e9 \u65e5 1234"
# What a server without memory may say; or it closes the connection.
CLOSED = (None, "closed", None)
FAILURES = {"internal", "busy_memory", "closed"}
# How watching may fail, in the words of the reader: refused, cut off, or without a hello.
UNWATCHED = ("500: ", "503: ", "a line cut", "a frame cut", "the stream ended", "{'event': 'gap'")


class Control(ctypes.Structure):
    """tests/torture/failing.h"""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("fail_at", "fail_new", "fail_all", "n_tried", "n_failed", "n_live")
    ]


class Torture:
    """A server, the file that says what fails in it, and what it holds when nothing goes on."""

    def __init__(self, server, control):
        self.client, self.control = server.client, control
        answer(self, *MADE)  # the first request leaves something behind
        self.clean()
        self.idle = control.n_live

    def arm(self, number, all_following):
        self.control.fail_all = all_following
        self.control.n_tried = self.control.n_failed = 0
        self.control.fail_at = number

    def disarm(self):
        """Returns how many failed."""
        self.control.fail_at = 0
        return self.control.n_failed

    def ask(self, method, target, body=None):
        """A request whose reply matters but is not looked at closely: (status, JSON or None)."""
        connection = http.client.HTTPConnection(self.client.host, self.client.port, seconds(10))
        try:
            connection.request(method, target, encode(body))
            reply = connection.getresponse()
            text = reply.read()
            return reply.status, contract.parse_json(text.decode()) if text else None
        finally:
            connection.close()

    def clean(self):
        """Verifies and deletes every session; then nothing may be left."""
        status, page = self.ask("GET", "/sessions")
        assert status == 200
        for session in page["sessions"]:
            name = session["session"]
            status, session = self.ask("POST", f"/sessions/{name}/cancel")
            assert status == 200 and session["kv"]["reserved_bytes"] == 0
            assert session["state"] == "idle"
            status, verified = self.ask("POST", f"/sessions/{name}/verify")
            assert status == 200 and verified["bit_identical"]
            assert self.ask("DELETE", f"/sessions/{name}")[0] == 204
        _, page = self.ask("GET", "/sessions")
        totals = page["totals"]
        assert totals["available_bytes"] == totals["budget_bytes"], totals
        assert totals["sessions"] == totals["positions"] == 0, totals

    def check_live(self):
        """No block is left that was not left before."""
        eventually(lambda: self.control.n_live <= self.idle, "all blocks to be freed")
        self.idle = self.control.n_live


def make_control(folder):
    """A new file that says what fails, and what is in it."""
    path = folder / "control"
    path.write_bytes(bytes(ctypes.sizeof(Control)))
    with open(path, "r+b") as file:
        return path, Control.from_buffer(mmap.mmap(file.fileno(), 0))


@pytest.fixture(scope="module")
def torture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torture")
    model = copy_model(REFERENCE / "models" / "llama-gqa", folder / "text")
    edit_json(model / "config.json", vocab_size=384)
    features = REFERENCE / "tokenizer" / "fixtures" / "features"
    (model / "tokenizer.json").write_text((features / "llama2.json").read_text())
    path, control = make_control(folder)
    flags = ["--threads", 2, "--kv-memory", "4MiB", "--log-level", "error", "--random", 1]
    flags += ["--model", model]
    server = Server(*flags, env={"ATTND_FAILING": str(path)}, binary=TORTURED)
    yield Torture(server, control)
    server.stop()


ROWS = {"session": "a", "model": "seed-attention", "inputs": X, "output": "all"}
TOKENS = {"session": "a", "model": "text", "text": TEXT}
SAMPLED = {"session": "a", "steps": 40, "temperature": 2, "top_p": 0.9, "seed": 3, "logprobs": 3}
SAMPLED |= {"stop": ["there is no such text", "nor such"], "stop_token_ids": [5, 383]}
STREAMED = {"session": "a", "steps": 30, "stream": True}
TRACE = {"tensors": ["hook_pattern", "hook_rot_q"], "top_k": 2}
FILE = safetensors_io.pack({"inputs": rows(40)}, {"session": "a", "model": "seed-attention"})
WANTS_FILE = {"Accept": SAFETENSORS}
PATTERN = "/sessions/a/tensors/blocks.0.attn.hook_pattern"

MADE = ("POST", "/prefill", ROWS)
WRITTEN = ("POST", "/prefill", TOKENS)

# What is asked before without failures, if anything, and what is to fail.
DEEDS = {
    "prefill": (None, MADE),
    "unnamed": (None, ("POST", "/prefill", {"model": "seed-attention", "inputs": X[:2]})),
    "append": (MADE, MADE),
    "long body": (None, ("POST", "/prefill", ROWS | {"inputs": X * 8})),
    "text": (None, ("POST", "/prefill", TOKENS | {"logits": True, "output": "all"})),
    "decode": (MADE, ("POST", "/decode", {"session": "a", "steps": 20})),
    "decode of rows": (MADE, ("POST", "/decode", {"session": "a", "inputs": X[:9]})),
    "decode of tokens": (WRITTEN, ("POST", "/decode", {"session": "a", "tokens": [7, 8, 9]})),
    "stream": (MADE, ("POST", "/decode", STREAMED)),
    "sampling": (WRITTEN, ("POST", "/decode", SAMPLED)),
    "stream of text": (WRITTEN, ("POST", "/decode", SAMPLED | {"stream": True})),
    "traced prefill": (None, ("POST", "/prefill", ROWS | {"trace": TRACE})),
    "traced stream": (WRITTEN, ("POST", "/decode", STREAMED | {"trace": TRACE, "seed": 1})),
    "tensor": (MADE, ("GET", PATTERN, None)),
    "tensor as file": (MADE, ("GET", PATTERN + "?dtype=U8", None, WANTS_FILE)),
    "rows as file": (None, ("POST", "/prefill", FILE, {"Content-Type": SAFETENSORS})),
    "output as file": (None, (*MADE, WANTS_FILE)),
    "steps as file": (MADE, ("POST", "/decode", {"session": "a", "steps": 9}, WANTS_FILE)),
    "list": (MADE, ("GET", "/sessions?limit=7", None)),
    "get": (MADE, ("GET", "/sessions/a", None)),
    "delete": (MADE, ("DELETE", "/sessions/a", None)),
    "fork": (MADE, ("POST", "/sessions/a/fork", {"as": "b", "at": 21})),
    "truncate": (MADE, ("POST", "/sessions/a/truncate", {"length": 5})),
    "cancel": (MADE, ("POST", "/sessions/a/cancel", None)),
    "verify": (MADE, ("POST", "/sessions/a/verify", {})),
    "tokens": (WRITTEN, ("GET", "/sessions/a/tokens", None)),
    "tokenize": (None, ("POST", "/tokenize", {"model": "text", "text": TEXT})),
    "detokenize": (None, ("POST", "/detokenize", {"model": "text", "tokens": [30, 40, 200]})),
    "models": (None, ("GET", "/models", None)),
    "model": (None, ("GET", "/models/text", None)),
    "health": (None, ("GET", "/health", None)),
    "metrics": (None, ("GET", "/metrics", None)),
    "openapi": (None, ("GET", "/openapi.json", None)),
    "index": (None, ("GET", "/", None)),
    "no path": (None, ("GET", "/nowhere", None)),
    "no method": (None, ("PUT", "/decode", {})),
    "no JSON": (None, ("POST", "/decode", b'{"session":')),
}
# Fields that differ from one time to the next.
PASSING = {"timing", "created", "last_used", "session", "available_bytes"}


def essence(value):
    """A JSON value without what differs each time."""
    if isinstance(value, dict):
        return {key: essence(item) for key, item in value.items() if key not in PASSING}
    return [essence(item) for item in value] if isinstance(value, list) else value


def answer(torture, method, target, body, headers=None):
    """What comes of a request: (status, error code or None, essence of what it says)."""
    try:
        connection = torture.client.send(method, target, body, headers)
        try:
            response = connection.getresponse()
            reply = Reply(response.status, response.headers, response.read())
        finally:
            connection.close()
    except (http.client.HTTPException, ConnectionError):
        return CLOSED
    if reply.content_type == contract.NDJSON:
        events = [contract.parse_json(line) for line in reply.text.splitlines()]
        for event in events:
            contract.check_event(event)
        said, error = events, events[-1].get("error")
    else:
        contract.check_reply(method, target, reply)
        said = None
        if reply.content_type == "application/json":
            said = reply.json
        elif reply.content_type == SAFETENSORS:
            tensors, _ = safetensors_io.unpack(reply.body)
            said = {name: array.tobytes() for name, array in tensors.items()}
        error = said["error"] if said and reply.status >= 400 else None
    return reply.status, error and error["code"], essence(said)


def run(torture, name, all_following):
    before, deed = DEEDS[name]
    outcomes, wanted = collections.Counter(), None
    for number in itertools.count():  # 0: without failures
        if before:
            assert torture.ask(*before)[0] == 200
        torture.arm(number, all_following)
        found = answer(torture, *deed)
        failed = torture.disarm()
        torture.clean()
        torture.check_live()
        if number == 0:
            wanted = found
        elif not failed:
            break
        elif found != wanted:
            assert found[1] in FAILURES, f"allocation {number}: {found}"
            outcomes[found[1]] += 1
        else:
            outcomes["answered all the same"] += 1
    assert found == wanted
    print(f"{name}: {dict(outcomes)}")


@pytest.mark.parametrize("name", DEEDS)
def test_one_fails(torture, name):
    run(torture, name, all_following=False)


@pytest.mark.parametrize("name", ["prefill", "stream of text", "fork", "tokens"])
def test_all_fail_from_one_on(torture, name):
    run(torture, name, all_following=True)


def watch_decode(torture, accept):
    """Watches a decode of session "a"; returns what was seen of it."""
    query = {"session": "a", "tensors": "hook_pattern", "fps": 0}
    with Watch(torture.client, accept, **query) as watch:
        watch.hello()
        failure = answer(torture, "POST", "/decode", STREAMED)[1]
        if failure:
            assert failure in FAILURES
            return failure
        return watch.skip("step", "gap")["event"]


@pytest.mark.parametrize("accept", [contract.NDJSON, FRAMES])
def test_watching(torture, accept):
    """A watcher is refused or cut off, or sees something; whom it watches does not mind."""
    outcomes = collections.Counter()
    for number in itertools.count():  # 0: without failures
        assert torture.ask(*MADE)[0] == 200
        torture.arm(number, False)
        try:
            outcome = watch_decode(torture, accept)
        except AssertionError as error:
            outcome = str(error).split("\n")[0]
            assert outcome.startswith(UNWATCHED), outcome
        except (http.client.HTTPException, OSError):
            outcome = "closed"
        outcomes[outcome[:20]] += 1
        failed = torture.disarm()
        torture.clean()
        if number == 0:
            assert outcome == "step"
            torture.idle += 3  # what all watchers share is made when first needed
        torture.check_live()
        if number > 0 and not failed:
            break
    print(dict(outcomes))


def start(path, control, number):
    """Starts a server whose allocation of that number fails, and ends it if it serves. Returns the
    allocations until it did, and the blocks left in the end."""
    for field, _ in Control._fields_:
        setattr(control, field, 0)
    control.fail_at = number
    process = subprocess.Popen(
        [TORTURED, "--port", "0", "--threads", "2", "--log-level", "error"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(ATTND_FAILING=str(path), LSAN_OPTIONS="print_suppressions=0"),
    )
    serves = process.stdout.readline().startswith("attnd listening on ")
    tried = control.n_tried
    control.fail_at = 0
    if serves:
        process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=seconds(20))
    assert not REPORT.search(said), said
    assert process.returncode == (0 if serves else 1), f"allocation {number}: {said}"
    assert serves == (said == ""), f"allocation {number}: {said}"
    assert said.count("\n") <= 1 and (serves or said.startswith("attnd: ")), said
    return tried, control.n_live


def test_starting(tmp_path):
    """Without memory the server says so in one line and ends in order; or it serves."""
    path, control = make_control(tmp_path)
    tried, live = start(path, control, 1 << 40)
    # At first the settings, then the models, which unit/test_torture opens, at last the threads.
    numbers = {*range(1, 30), *range(30, tried - 250, 900), *range(tried - 250, tried - 30, 11)}
    numbers = sorted({*numbers, *range(tried - 30, tried + 1)})
    for number in numbers[:: 1 if SLOWDOWN == 1 else 4]:
        _, left = start(path, control, number)
        assert left <= live, f"allocation {number}: {left} blocks left"
