"""Waiting for the server: with deadlines that only a hang ever reaches, and never by sleeping."""

import os
import time

# Sanitizer builds are slower; every deadline grows by this factor.
SLOWDOWN = float(os.environ.get("ATTND_TEST_SLOWDOWN", "1"))


def seconds(count):
    return count * SLOWDOWN


def eventually(condition, what, within=10):
    """Polls until condition() is true; returns what it returned."""
    deadline = time.monotonic() + seconds(within)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds(within)} s in vain: {what}"
        time.sleep(0.005)
