"""Waiting for the server: with deadlines that only a hang ever reaches, and never by sleeping."""

import os
import threading
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


def all_at_once(jobs):
    """Runs the functions in threads of their own, all begun together; returns their results."""
    barrier = threading.Barrier(len(jobs))
    results, errors = [None] * len(jobs), []

    def work(i):
        try:
            barrier.wait(seconds(30))
            results[i] = jobs[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
