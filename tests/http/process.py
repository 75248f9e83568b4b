"""The server as a process: started on a free port, stopped with SIGTERM, judged by its exit."""

import os
import re
import select
import signal
import subprocess
import tempfile
import time

import contract
from client import Client
from waiting import seconds

BINARY = os.path.abspath(
    os.environ.get("ATTND_BINARY", contract.ROOT / "build" / "release" / "attnd")
)
KERNELS = ("scalar", "avx2", "avx512")
# What sanitizers print when they find something.
REPORT = re.compile(r"Sanitizer|runtime error:")


def environment(**variables):
    """The environment of a server: ours without what would configure it, and `variables`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ATTND_")}
    return {**kept, **variables}


class Server:
    """A running server and a client of it.

    Without a --model in the flags the tutorial's layer is its default model, as most tests want it.
    """

    def __init__(
        self, *flags, default_model="seed-attention", env=None, port=0, binary=BINARY
    ):
        if default_model and "--model" not in flags:
            flags = (*flags, "--default-model", default_model)
        self.judged = True  # False: a test has ended it in a way of its own
        self._stderr = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [binary, "--port", str(port), *map(str, flags)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment(**(env or {})),
        )
        line = self._first_line()
        match = re.fullmatch(r"attnd listening on http://(\S+):(\d+)\n", line)
        if not match:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"first line {line!r}\n{self.stderr()}")
        self.host, self.port = match[1].strip("[]"), int(match[2])
        self.client = Client(self.host, self.port)

    def _first_line(self):
        """The first line on stdout; what has come of it if none comes in time."""
        stdout, line, deadline = self.process.stdout, b"", time.monotonic() + seconds(20)
        while not line.endswith(b"\n") and time.monotonic() < deadline:
            if select.select([stdout], [], [], 0.1)[0]:
                byte = os.read(stdout.fileno(), 1)
                if not byte:
                    break
                line += byte
        return line.decode()

    def stderr(self):
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, within=10):
        """Waits for the end of the process; returns its exit code."""
        try:
            return self.process.wait(seconds(within))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end within {seconds(within)} s") from None

    def stop(self):
        """Stops the server in the ordinary way, unless it has ended, and judges how it did."""
        if self._stderr.closed:
            return
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self.wait()
        self.process.stdout.close()
        text = self.stderr()
        self._stderr.close()
        print(text[-4000:])
        if self.judged:
            assert not REPORT.search(text), "the server's stderr holds a sanitizer's report"
            assert self.process.returncode == 0, f"exit code {self.process.returncode}"


def run(*arguments, **variables):
    """Runs the program to its end: a CompletedProcess with text output."""
    return subprocess.run(
        [BINARY, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds(20),
        env=environment(**variables),
    )


def refuses_kernels(name):
    """None if this machine runs the kernels, else what the server says when it refuses them."""
    process = subprocess.Popen(
        [BINARY, "--kernels", name, "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        if process.stdout.readline():
            return None
        _, message = process.communicate(timeout=seconds(20))
        assert process.returncode == 1
        assert message.count("\n") == 1 and "--kernels" in message, message
        return message.strip()
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
