"""Draws stories from a language model that attnd serves, one text a line.

    build/release/attnd --model stories260K --port 8090 &
    sample.py --url http://127.0.0.1:8090 --model stories260K --temperature 0.8 \
              --first-seed 0 --stories 40000 > sampled.txt

Story i is drawn from the beginning-of-sequence token with seed first-seed + i, until the model
begins another one or 400 tokens are drawn. The server's answers do not depend on what else runs, so
the same arguments always write the same bytes. Stories that do not end are left out; a line break
inside a story is written as a tab.
"""

import argparse
import concurrent.futures
import http.client
import json
import sys
import threading
from urllib.parse import urlsplit

STEPS = 400

local = threading.local()


def call(url, method, path, body=None):
    """One request over this thread's connection. Returns the reply's JSON, or None if empty."""
    if not hasattr(local, "connection"):
        local.connection = http.client.HTTPConnection(urlsplit(url).netloc)
    local.connection.request(method, path, body and json.dumps(body))
    reply = local.connection.getresponse()
    text = reply.read()
    if reply.status >= 400:
        raise SystemExit(f"{method} {path}: {reply.status} {text.decode()}")
    return json.loads(text) if text else None


def story(arguments, seed):
    """The story of one seed, or None if it did not end."""
    url, model, session = arguments.url, arguments.model, f"story-{seed}"
    start = {"session": session, "model": model, "tokens": [arguments.bos]}
    call(url, "POST", "/prefill", start)
    run = {
        "session": session,
        "steps": STEPS,
        "temperature": arguments.temperature,
        "top_p": arguments.top_p,
        "seed": seed,
        "stop_token_ids": [arguments.bos],
    }
    reply = call(url, "POST", "/decode", run)
    call(url, "DELETE", f"/sessions/{session}")
    ended = reply["reason"] == "stop"
    return reply["text"].strip() if ended else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model", required=True)
    parser.add_argument("--bos", type=int, default=1, help="the token that begins a story")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--stories", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=64)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.stories)
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        for text in pool.map(lambda seed: story(arguments, seed), seeds):
            if text:
                print(text.replace("\n", "\t"))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
