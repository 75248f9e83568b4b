"""The command line: what it prints, what it refuses, and how."""

import json
import shutil
import socket

import pytest

from data import HIDDEN, REFERENCE, golden, make_model, rows
from process import Server, run

SEED_MODEL = REFERENCE.parents[1] / "engine" / "models" / "seed-attention"

FLAGS = """model default-model random weights host port threads kv-memory max-sessions queue max-body
    body-memory max-connections stall-timeout ttl allowed-host cors-origin kernels log-level""".split()


def refused(*arguments, naming, **variables):
    """The program ends at once with exit code 1 and one line on stderr that names `naming`."""
    result = run(*arguments, **variables)
    assert result.returncode == 1, result
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n"), result.stderr
    assert naming in result.stderr
    return result.stderr


def test_help():
    result = run("--help")
    assert (result.returncode, result.stderr) == (0, "")
    for flag in FLAGS:
        assert f"--{flag} " in result.stdout
    assert "ATTND_" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_version():
    result = run("--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("attnd ") and result.stdout.count("\n") == 1


def test_port_0_and_first_line(launch):
    servers = [launch(), launch()]
    ports = {server.port for server in servers}
    assert len(ports) == 2 and 0 not in ports
    for server in servers:
        assert server.host == "127.0.0.1"
        assert server.client.get("/health").status == 200


def test_unknown_flag():
    for flag in ("--nonsense", "--Port", "-p", "--", "port"):
        refused(flag, naming=flag)


@pytest.mark.parametrize(
    "flag, value",
    [
        ("--port", "65536"),
        ("--port", "-1"),
        ("--port", "80a"),
        ("--port", ""),
        ("--threads", "0"),
        ("--threads", "1000000"),
        ("--threads", "two"),
        ("--kv-memory", "0"),
        ("--kv-memory", "1.5GiB"),
        ("--kv-memory", "4XB"),
        ("--kv-memory", "99999999999999999999"),
        ("--kv-memory", "99999999999GiB"),
        ("--max-sessions", "0"),
        ("--queue", "0"),
        ("--max-body", "-1"),
        ("--stall-timeout", "0"),
        ("--ttl", "-1"),
        ("--random", "x"),
        ("--random", "18446744073709551616"),
        ("--weights", "int4"),
        ("--kernels", "sse"),
        ("--kernels", ""),
        ("--log-level", "loud"),
        ("--host", ""),
        ("--default-model", ""),
        ("--default-model", "nobody"),
        ("--host", "no.such.host.invalid"),
    ],
)
def test_bad_values(flag, value):
    refused(flag, value, naming=flag)
    refused(f"{flag}={value}", naming=flag)


def test_missing_value():
    for flag in FLAGS:
        refused(f"--{flag}", naming=f"--{flag}")


def test_bad_variable():
    text = refused(ATTND_THREADS="none", naming="--threads")
    assert "ATTND_THREADS" in text


def test_sizes(launch):
    for text, size in {
        "3M": 3_000_000,
        "2MiB": 2 << 20,
        "2000K": 2_000_000,
        "4194304": 1 << 22,
    }.items():
        assert launch("--kv-memory", text).client.totals()["budget_bytes"] == size


def test_environment(launch):
    server = launch(env={"ATTND_KV_MEMORY": "5MiB", "ATTND_MAX_SESSIONS": "1"})
    client = server.client
    assert client.totals()["budget_bytes"] == 5 << 20
    client.prefill(session="a", inputs=rows(1))
    client.post("/prefill", {"inputs": rows(1)}).error(429, "too_many_sessions")


def test_a_flag_beats_the_environment(launch):
    server = launch("--kv-memory=6MiB", env={"ATTND_KV_MEMORY": "5MiB"})
    assert server.client.totals()["budget_bytes"] == 6 << 20


def test_taken_port(launch):
    server = launch()
    text = refused("--port", server.port, naming="--port")
    assert str(server.port) in text
    assert server.client.get("/health").status == 200


def test_port_taken_by_another_program():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        refused("--port", sock.getsockname()[1], naming="--port")


# ------------------------------------------------------------------------------------ models


def test_two_models(launch, tmp_path):
    small = {"hidden": 24, "heads": 3, "kv_heads": 1, "head_dim": 10}
    flags = make_model(tmp_path / "one", 2, **small)[:2]
    flags += ["--model", f"second={make_model(tmp_path / 'two', 1, **small)[1]}", "--random", 5]
    client = launch(*flags).client
    found = client.get("/models").ok()
    assert found["default"] == "one"
    names = [model["name"] for model in found["models"]]
    assert names == ["one", "second", "stories", "seed-attention"]
    assert [model["built_in"] for model in found["models"]] == [False, False, True, True]
    assert [model["random_weights"] for model in found["models"]] == [True, True, False, False]
    x = rows(3, 24)
    assert client.prefill(session="a", inputs=x)["model"] == "one"
    assert client.prefill(session="b", inputs=x, model="second")["model"] == "second"
    assert client.prefill(session="c", inputs=rows(3), model="seed-attention")["length"] == 3
    client.post("/prefill", {"session": "a", "inputs": x, "model": "second"}).error(
        409, "model_mismatch", "model"
    )
    client.post("/prefill", {"inputs": rows(1)}).error(400, "invalid_request", "inputs")
    metrics = client.metrics()
    for name in ("one", "second", "seed-attention"):
        assert metrics.get_value("attnd_sessions", model=name) == 1


def test_the_default_model(launch, tmp_path):
    """The stories; else the first --model; else as told. It is listed first, others in order."""
    found = launch(default_model=None).client.get("/models").ok()
    assert found["default"] == "stories"
    assert [model["name"] for model in found["models"]] == ["stories", "seed-attention"]
    flags = make_model(tmp_path / "one", 1, hidden=24, heads=3, kv_heads=1, head_dim=10)
    flags += ["--model", f"two={flags[1]}"]
    order = [model["name"] for model in launch(*flags).client.get("/models").ok()["models"]]
    assert order == ["one", "two", "stories", "seed-attention"]
    for name, hidden in (("one", 24), ("two", 24), ("seed-attention", HIDDEN)):
        client = launch(*flags, "--default-model", name).client
        found = client.get("/models").ok()
        assert found["default"] == name
        others = [other for other in order if other != name]
        assert [model["name"] for model in found["models"]] == [name, *others]
        assert client.prefill(inputs=rows(1, hidden))["model"] == name


def test_a_model_name_twice(tmp_path):
    folder = make_model(tmp_path / "m", 1)[1]
    refused("--model", folder, "--model", f"m={folder}", "--random", 1, naming="--model")


def test_a_model_replaces_a_built_in_one(launch, tmp_path):
    flags = make_model(tmp_path / "m", 1, hidden=24, heads=3, kv_heads=1, head_dim=10)
    flags[1] = f"seed-attention={flags[1]}"
    models = launch(*flags).client.get("/models").ok()["models"]
    assert [model["name"] for model in models] == ["seed-attention", "stories"]
    assert [model["built_in"] for model in models] == [False, True]
    assert models[0]["hidden_size"] == 24


def test_a_model_from_files(launch):
    """The built-in model's own folder, given as --model: the same answers."""
    client = launch("--model", f"copy={SEED_MODEL}").client
    inputs = golden("example5")[0]["call0.inputs"][0]
    outputs = [
        client.prefill(model=name, inputs=inputs, output="all")["output"]
        for name in ("copy", "seed-attention")
    ]
    assert outputs[0] == outputs[1]


def broken_model(folder, change):
    """A copy of the built-in model's folder after change(folder)."""
    shutil.copytree(SEED_MODEL, folder)
    change(folder)
    return folder


def edit_config(**fields):
    def change(folder):
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **fields}
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return change


def edit_weights(edit):
    def change(folder):
        path = folder / "model.safetensors"
        path.write_bytes(edit(path.read_bytes()))

    return change


def retitle(old, new):
    """Replaces text in a safetensors header by text of the same length."""
    assert len(old) == len(new)
    return edit_weights(lambda data: data.replace(old.encode(), new.encode(), 1))


BROKEN = {
    "no config": lambda folder: (folder / "config.json").unlink(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "config is a folder": lambda folder: (
        (folder / "config.json").unlink(),
        (folder / "config.json").mkdir(),
    ),
    "empty config": lambda folder: (folder / "config.json").write_text(""),
    "config is no JSON": lambda folder: (folder / "config.json").write_text("{]"),
    "config is an array": lambda folder: (folder / "config.json").write_text("[]"),
    "config is deep": lambda folder: (folder / "config.json").write_text("[" * 100000),
    "unknown type": edit_config(model_type="gpt2"),
    "no type": edit_config(model_type=None),
    "no hidden size": edit_config(hidden_size=None),
    "text for a number": edit_config(hidden_size="16"),
    "negative": edit_config(num_attention_heads=-4),
    "zero layers": edit_config(num_hidden_layers=0),
    "zero kv heads": edit_config(num_key_value_heads=0),
    "fraction": edit_config(head_dim=8.5),
    "odd head_dim": edit_config(head_dim=7),
    "heads do not divide": edit_config(num_key_value_heads=3),
    "huge": edit_config(hidden_size=1 << 40),
    "other shape": edit_config(hidden_size=32),
    "a layer too many": edit_config(num_hidden_layers=2),
    "empty weights": edit_weights(lambda data: b""),
    "7 bytes": edit_weights(lambda data: data[:7]),
    "header cut": edit_weights(lambda data: data[:100]),
    "data cut": edit_weights(lambda data: data[:-1]),
    "data too long": edit_weights(lambda data: data + b"\0"),
    "header past the end": edit_weights(lambda data: b"\xff" * 7 + b"\0" + data[8:]),
    "header of 2^63": edit_weights(lambda data: b"\0" * 7 + b"\x80" + data[8:]),
    "header is no JSON": edit_weights(lambda data: data[:8] + b"!" + data[9:]),
    "tensor missing": retitle("q_proj.weight", "x_proj.weight"),
    "unknown dtype": retitle('"F32"', '"F33"'),
    "other dtype": retitle('"F32"', '"F64"'),
    "negative offset": retitle('"data_offsets":[0', '"data_offsets":-0'),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_broken_model(tmp_path, change):
    refused("--model", broken_model(tmp_path / "broken", change), naming="broken")


def test_no_such_folder(tmp_path):
    refused("--model", tmp_path / "nobody", naming="nobody")
    refused("--model", f"name={tmp_path / 'nobody'}", naming="nobody")


def test_random_is_for_folders_without_weights(launch):
    """--random does not touch a model that has its weights."""
    client = launch("--model", f"copy={SEED_MODEL}", "--random", 7).client
    models = {model["name"]: model for model in client.get("/models").ok()["models"]}
    assert not models["copy"]["random_weights"]
    assert not models["seed-attention"]["random_weights"]


def test_a_model_folder_without_weights_needs_random(tmp_path):
    flags = make_model(tmp_path / "empty", 1)
    refused(*flags[:2], naming="empty")


def test_bad_model_arguments(tmp_path):
    folder = make_model(tmp_path / "m", 1)[1]
    for value in (f"={folder}", "a b=" + str(folder), "name=", "x" * 65 + f"={folder}"):
        refused("--model", value, "--random", 1, naming="--model")


def test_hosts(launch):
    client = launch("--allowed-host", "attnd.example").client
    for host in (
        "attnd.example",
        f"attnd.example:{client.port}",
        "localhost",
        "127.0.0.1",
        "[::1]",
    ):
        assert client.get("/health", Host=host).status == 200
    client.get("/health", Host="other.example").error(403, "forbidden_host")


def test_start_stop_again():
    """A server stops cleanly with sessions in it, and its port is free at once."""
    server = Server()
    server.client.prefill(session="a", inputs=rows(40))
    port = server.port
    server.stop()
    again = Server(port=port)
    assert not again.client.exists("a")
    again.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1"])
def test_host(launch, host):
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6 here")
    client = launch("--host", host).client
    if host == "0.0.0.0":
        client.get("/health").error(403, "forbidden_host")  # what it listens on is no name
        client.host = "127.0.0.1"
    assert client.get("/health").ok()


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True
