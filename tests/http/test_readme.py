"""What the documentation tells people to type works, and works twice."""

import subprocess

import pytest

import contract
from process import environment
from waiting import seconds

DEMO = contract.ROOT / "clients" / "curl" / "demo.sh"


@pytest.mark.skipif(not DEMO.exists(), reason="there is no clients/curl/demo.sh")
def test_demo(launch):
    server = launch()
    for _ in range(2):
        result = subprocess.run(
            [DEMO],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds(60),
            env=environment(ATTND_URL=f"http://{server.host}:{server.port}"),
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert '"bit_identical":true' in result.stdout
        assert not server.client.exists("demo")
