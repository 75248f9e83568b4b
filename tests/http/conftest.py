"""Fixtures: a server for everybody, servers with flags of their own, unused session ids."""

import itertools
import os
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from client import Client
from process import Server
from witness import Witness

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def client():
    """The client of a server that the tests share. ATTND_URL: one that runs already."""
    url = os.environ.get("ATTND_URL")
    if url:
        parts = urlsplit(url)
        yield Client(parts.hostname, parts.port)
        return
    server = Server("--threads", 2, "--kv-memory", "256MiB")
    yield server.client
    server.stop()


def _launcher():
    with ExitStack() as stack:

        def start(*flags, **options):
            server = Server(*flags, **options)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def launch():
    """Starts servers with flags of their own; they must stop cleanly when the test ends."""
    yield from _launcher()


@pytest.fixture(scope="module")
def launch_for_module():
    """The same, until the module's last test has ended."""
    yield from _launcher()


@pytest.fixture
def sid():
    """A session id of the test's own."""
    return f"t{next(_numbers)}"


@pytest.fixture(scope="module")
def witness(launch_for_module):
    """A session that nobody may touch, on a server of the module's own."""
    one = Witness(launch_for_module("--threads", 2, "--kv-memory", "64MiB").client)
    yield one
    one.check()
    assert one.client.totals()["sessions"] == 1
