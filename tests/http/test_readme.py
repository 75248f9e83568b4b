"""What the documentation tells people to type works, and works twice."""

import os
import subprocess

import pytest

import contract
from process import environment
from waiting import seconds

DEMO = contract.ROOT / "clients" / "curl" / "demo.sh"


@pytest.mark.skipif(not DEMO.exists(), reason="there is no clients/curl/demo.sh")
def test_demo(launch):
    server = launch()
    url = f"http://{server.host}:{server.port}"
    outputs = []
    for _ in range(2):
        result = subprocess.run(
            ["bash", DEMO, url],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds(60),
            env=environment(URL=url),
        )
        assert result.returncode == 0, result.stdout + result.stderr
        outputs.append(result.stdout)
    assert outputs[0] and os.access(DEMO, os.X_OK)
