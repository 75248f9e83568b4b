"""What the documentation tells people to type works, and works twice."""

import re
import subprocess

import contract
from process import environment
from waiting import seconds

README = (contract.ROOT / "README.md").read_text()
MAKEFILE = (contract.ROOT / "Makefile").read_text()
DEMO = contract.ROOT / "clients" / "curl" / "demo.sh"
URL = "http://127.0.0.1:8080"


def curl_lines():
    """The README's lines for a server that runs as `make run` starts it."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("curl ")]


def run(command, **options):
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds(60),
        cwd=contract.ROOT,
        **options,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_lines_of_the_readme(launch):
    server = launch(default_model=None)
    url = f"http://{server.host}:{server.port}"
    for _ in range(2):
        said = {}
        for line in curl_lines():
            said[line] = run(["bash", "-c", line.replace(URL, url) + " -sS --fail-with-body"])
        prefill, decode, tokens = list(said.values())[:3]
        assert '"tokens":[' in prefill and '"done":true' in decode
        assert '"text":"Once upon a time' in tokens
    assert server.client.session("story")["model"] == "stories"
    assert server.client.session("demo")["model"] == "seed-attention"


def test_make_run_prints_the_first_of_them():
    printed = MAKEFILE.replace('\\"', '"').replace("$$url", URL)
    for line in curl_lines()[:3]:
        assert f'echo "  {line}"' in printed


def test_demo(launch):
    server = launch(default_model=None)
    for _ in range(2):
        said = run([DEMO], env=environment(ATTND_URL=f"http://{server.host}:{server.port}"))
        assert "Once upon a time" in said and '"bit_identical":true' in said
        assert server.client.totals()["sessions"] == 0
