"""clients/curl/lessons.sh: every claim holds on this server, and a wrong number is noticed."""

import http.client
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "clients" / "curl" / "lessons.sh"
CLAIMS = 19

pytestmark = pytest.mark.slow  # it is jq that takes the time


def run(url, language):
    environment = {**os.environ, "ATTND_URL": url}
    return subprocess.run(
        [SCRIPT, language], env=environment, capture_output=True, text=True, timeout=120
    )


def url_of(client):
    return f"http://{client.host}:{client.port}"


@pytest.mark.parametrize("language, last", [("en", "All claims hold."), ("zh", "全部通过。")])
def test_every_claim_holds(client, language, last):
    done = run(url_of(client), language)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == CLAIMS
    assert "✗" not in done.stdout
    assert done.stdout.rstrip().endswith(last)
    listed = client.get("/sessions?limit=1000").json["sessions"]
    assert not [s for s in listed if s["session"].startswith("lesson-")]


class Tampering(BaseHTTPRequestHandler):
    """Passes requests on, and changes the weights of patterns on their way back."""

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = http.client.HTTPConnection(*self.server.target)
        connection.request(self.command, self.path, body or None)
        reply = connection.getresponse()
        text = reply.read()
        if "hook_pattern" in self.path:
            text = text.replace(b"0.5", b"0.6", 1)
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        connection.close()

    do_GET = do_POST = do_DELETE = pass_on

    def log_message(self, *arguments):
        pass


def test_a_wrong_weight_is_noticed(client):
    with ThreadingHTTPServer(("127.0.0.1", 0), Tampering) as proxy:
        proxy.target = (client.host, client.port)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        done = run(f"http://127.0.0.1:{proxy.server_port}", "en")
        proxy.shutdown()
    assert done.returncode == 1
    assert "✗" in done.stdout
    assert done.stdout.rstrip().endswith("A claim does not hold.")
