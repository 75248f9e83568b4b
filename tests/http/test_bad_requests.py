"""Requests that are wrong: each is refused as the contract says, and changes nothing.

After every one of them the server answers, and a witness session is as long as before and gives
the same next output, bit for bit.
"""

import json
from collections import namedtuple

import pytest

from data import HIDDEN
from witness import GOOD, ROW, WITNESS

Case = namedtuple("Case", "name method path headers body status code param")
ANY = object()


def case(name, body, status, code, param=ANY, path="/prefill", method="POST", **headers):
    return Case(name, method, path, headers, body, status, code, param)


def prefill(name, fields, code="invalid_request", param=ANY, status=400):
    """A prefill that would be right but for these fields."""
    return case(
        f"prefill {name}", {"session": "bad", "inputs": [ROW], **fields}, status, code, param
    )


def decode(name, fields, code="invalid_request", param=ANY, status=400):
    """A decode of the witness that would be right but for these fields."""
    return case(
        f"decode {name}", {"session": WITNESS, **fields}, status, code, param, path="/decode"
    )


def text(name, body, code="invalid_json", param=None, path="/prefill"):
    """A body given as its very bytes."""
    return case(f"text {name}", body, 400, code, param, path=path)


def number(name, literal, code="invalid_json", param=None):
    """A row with this literal among its numbers."""
    body = b'{"session":"bad","inputs":[[%s%s]]}' % (literal, b",0" * (HIDDEN - 1))
    return text(f"number {name}", body, code, param)


def fields_of(make, field, values):
    """The same field with one wrong value after another."""
    return [
        make(f"{field} {i} {json.dumps(value)[:30]}", {field: value}, param=field)
        for i, value in enumerate(values)
    ]


NOT_TEXT = [None, 1, True, [], {}, ["a"]]
NOT_WHOLE = [None, -1, 1.5, 1.0, "1", True, [], {}, [1], 2**53 + 1]
NOT_BOOL = [None, 0, 1, "true", [], {}]
NOT_ROWS = [None, 1, "x", True, {}, [], [[]], [1, 2], ROW, [[], []], [ROW, []], [[None] * HIDDEN]]
NOT_ROWS += [[["1"] * HIDDEN], [[True] * HIDDEN], [[ROW]], [{}], [ROW, 1], [ROW, None], [ROW[:-1]]]
NOT_ROWS += [[ROW + [0]], [ROW, ROW[:-1]], [ROW[:-1], ROW], [[[0.5]] * HIDDEN], [[{}] * HIDDEN]]
NOT_ROW = [None, 1, "x", True, {}, [], [ROW], ROW[:-1], ROW + [0], [None] * HIDDEN, ["1"] * HIDDEN]
BAD_IDS = ["", ".", "..", "a" * 65, "a b", "a/b", "a\n", "\u00e9", "a%2e", "a?b", "*", "'", '"']

LANGUAGE_FIELDS = {
    "tokens": [1, 2],
    "text": "once",
    "logits": True,
}
LANGUAGE_PREFILL = {**LANGUAGE_FIELDS, "add_special": True}
LANGUAGE_DECODE = {
    **LANGUAGE_FIELDS,
    "token": 1,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "seed": 7,
    "stop": "x",
    "stop_token_ids": [1],
    "ignore_eos": True,
    "logprobs": 3,
}

PREFILL = [
    *fields_of(prefill, "session", NOT_TEXT + BAD_IDS),
    *fields_of(prefill, "model", NOT_TEXT),
    *fields_of(prefill, "inputs", NOT_ROWS),
    *fields_of(prefill, "output", [None, 1, True, "", "some", "LAST", ["last"]]),
    *fields_of(prefill, "if_length", NOT_WHOLE + [2**64, 10**40]),
    *fields_of(prefill, "wait_ms", NOT_WHOLE + [3600001]),
    *fields_of(prefill, "ttl_s", NOT_WHOLE + [2**32]),
    *fields_of(prefill, "keep_inputs", NOT_BOOL),
    *fields_of(prefill, "kv_dtype", [None, 32, "", "f8", "F32", []]),
    *[
        prefill(f"{name} of a language model", {name: value}, param=name)
        for name, value in LANGUAGE_PREFILL.items()
    ],
    prefill("unknown model", {"model": "nobody"}, "model_not_found", "model", 404),
    prefill("empty model", {"model": ""}, "model_not_found", "model", 404),
    prefill("unknown field", {"prompt": 1}, param=None),
    prefill("a field of another request", {"steps": 1}, param=None),
    prefill("another case", {"Session": "bad"}, param=None),
    prefill("an empty name", {"": 1}, param=None),
    prefill("a long unknown name", {"x" * 5000: 1}, param=None),
    case("prefill without rows", {"session": "bad"}, 400, "invalid_request", "inputs"),
    case("prefill of nothing", {}, 400, "invalid_request", "inputs"),
    case("prefill with an empty body", b"", 400, "invalid_request", "inputs"),
    prefill(
        "onto the witness, too short",
        {"session": WITNESS, "if_length": 3},
        "length_mismatch",
        "if_length",
        409,
    ),
    prefill(
        "onto the witness, ttl_s", {"session": WITNESS, "ttl_s": 5}, "session_exists", "ttl_s", 409
    ),
    prefill(
        "onto the witness, ragged", {"session": WITNESS, "inputs": [ROW, ROW[:-1]]}, param="inputs"
    ),
]

DECODE = [
    *fields_of(decode, "session", NOT_TEXT + BAD_IDS),
    *fields_of(decode, "input", NOT_ROW),
    *fields_of(decode, "inputs", NOT_ROWS),
    *fields_of(decode, "steps", NOT_WHOLE + [0, 2**64, 10**40]),
    *fields_of(decode, "stream", NOT_BOOL),
    *fields_of(decode, "if_length", NOT_WHOLE),
    *fields_of(decode, "wait_ms", NOT_WHOLE + [3600001]),
    *[
        decode(f"{name} of a language model", {name: value}, param=name)
        for name, value in LANGUAGE_DECODE.items()
    ],
    *[decode(f"{name} null", {name: None}, param=name) for name in LANGUAGE_DECODE],
    decode("input and inputs", {"input": ROW, "inputs": [ROW]}),
    decode("input and steps", {"input": ROW, "steps": 1}, param="steps"),
    decode("inputs and steps", {"inputs": [ROW], "steps": 1}, param="steps"),
    decode("unknown field", {"n": 1}, param=None),
    decode("a field of prefill", {"keep_inputs": True}, param=None),
    decode("too many steps", {"steps": 40000}, "context_length_exceeded"),
    decode("huge steps", {"steps": 2**53 - 1, "stream": True}, "context_length_exceeded"),
    decode("another length", {"if_length": 3}, "length_mismatch", "if_length", 409),
    decode("another model", {"model": "nobody"}, "model_not_found", "model", 404),
    decode("nobody", {"session": "nobody"}, "session_not_found", "session", 404),
    case("decode of nothing", {}, 400, "invalid_request", "session", path="/decode"),
    case("decode with an empty body", b"", 400, "invalid_request", "session", path="/decode"),
]


def nested(depth, left=b"[", right=b"]"):
    return b'{"session":"bad","inputs":' + left * depth + right * depth + b"}"


TEXT = [
    text("nothing but space", b" \n"),
    text("an array", b"[]", "invalid_request"),
    text("a number", b"1", "invalid_request"),
    text("a string", b'"x"', "invalid_request"),
    text("null", b"null", "invalid_request"),
    text("half a body", GOOD[:-1]),
    text("a quarter of it", GOOD[:20]),
    text("one brace", b"{"),
    text("trailing byte", GOOD + b"x"),
    text("two bodies", GOOD + GOOD),
    text("trailing comma", GOOD[:-1] + b",}"),
    text("trailing NUL", GOOD + b"\0"),
    text("NUL in a string", GOOD.replace(b"bad", b"b\0d")),
    text("NUL among spaces", b"\0" + GOOD),
    text("escaped NUL", GOOD.replace(b"bad", b"b\\u0000d")),
    text("byte order mark", b"\xef\xbb\xbf" + GOOD),
    text("UTF-16", GOOD.decode().encode("utf-16-le")),
    text("bad UTF-8", GOOD.replace(b"bad", b"b\xff")),
    text("cut UTF-8", GOOD.replace(b"bad", b"b\xc3")),
    text("overlong UTF-8", GOOD.replace(b"bad", b"b\xc0\xaf")),
    text("UTF-8 surrogate", GOOD.replace(b"bad", b"b\xed\xa0\x80")),
    text("UTF-8 past the end", GOOD.replace(b"bad", b"b\xf4\x90\x80\x80")),
    text("bad UTF-8 in an unknown field", GOOD[:-1] + b',"x":"\xff"}'),
    text("lone surrogate", GOOD.replace(b"bad", b"\\ud800")),
    text("lone low surrogate", GOOD.replace(b"bad", b"\\udc00")),
    text("bad escape", GOOD.replace(b"bad", b"\\x41")),
    text("short escape", GOOD.replace(b"bad", b"\\u12")),
    text("control character", GOOD.replace(b"bad", b"b\nd")),
    text("single quotes", GOOD.replace(b'"', b"'")),
    text("unquoted name", GOOD.replace(b'"session"', b"session")),
    text("comment", b"/* */" + GOOD),
    text("duplicate session", GOOD[:-1] + b',"session":"bad"}', "invalid_request", "session"),
    text("duplicate inputs", GOOD[:-1] + b',"inputs":[[1]]}', "invalid_request", "inputs"),
    text(
        "duplicate, escaped", GOOD[:-1] + b',"sess\\u0069on":"bad"}', "invalid_request", "session"
    ),
    text("duplicate unknown", GOOD[:-1] + b',"x":1,"x":1}', "invalid_request"),
    text("broken after an error", b'{"x":1,"inputs":[[1]'),
    text("nested 10", nested(10), "invalid_request", "inputs"),
    text("nested 31", nested(31), "invalid_request", "inputs"),
    text("nested 32", nested(32)),
    text("nested 100", nested(100)),
    text("nested 10,000", nested(10_000)),
    text("nested 1,000,000", nested(1_000_000)),
    text("nested 1,000,000, open", b"[" * 1_000_000),
    text("nested objects", nested(100_000, b'{"a":', b"1}")),
    text("nested in an unknown field", b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    text(
        "a million fields",
        b"{" + b",".join(b'"%d":0' % i for i in range(1_000_000)) + b"}",
        "invalid_request",
    ),
    text(
        "a million times nothing",
        b'{"session":"bad","inputs":[%s[]]}' % (b"[]," * 1_000_000),
        "invalid_request",
        "inputs",
    ),
    text(
        "one row of a million",
        b'{"session":"bad","inputs":[[%s0]]}' % (b"0," * 1_000_000),
        "invalid_request",
        "inputs",
    ),
    text("a long string", b'{"session":"%s"}' % (b"a" * 1_000_000), "invalid_request", "session"),
]

FLOATS = [
    number("NaN", b"NaN"),
    number("nan", b"nan"),
    number("Infinity", b"Infinity"),
    number("-Infinity", b"-Infinity"),
    number("inf", b"inf"),
    number("1e999", b"1e999", "invalid_request", "inputs"),
    number("-1e999", b"-1e999", "invalid_request", "inputs"),
    number("1e39", b"1e39", "invalid_request", "inputs"),
    number("-1e39", b"-1e39", "invalid_request", "inputs"),
    number("3.5e38", b"3.5e38", "invalid_request", "inputs"),
    number("FLT_MAX and a half", b"3.4028235677973367e38", "invalid_request", "inputs"),
    number("many digits", b"1" * 400, "invalid_request", "inputs"),
    number("huge exponent", b"1e99999999999999999999", "invalid_request", "inputs"),
    number("+1", b"+1"),
    number(".5", b".5"),
    number("1.", b"1."),
    number("01", b"01"),
    number("-", b"-"),
    number("--1", b"--1"),
    number("1e", b"1e"),
    number("1e+", b"1e+"),
    number("0x10", b"0x10"),
    number("1_0", b"1_0"),
    number("1,5", b"1,,5"),
    number("1 5", b"1 5"),
    number("string", b'"1"', "invalid_request", "inputs"),
    number("null", b"null", "invalid_request", "inputs"),
    number("object", b"{}", "invalid_request", "inputs"),
    text(
        "steps 1e999", b'{"session":"witness","steps":1e999}', "invalid_request", "steps", "/decode"
    ),
    text("steps NaN", b'{"session":"witness","steps":NaN}', path="/decode"),
    text("steps -0", b'{"session":"witness","steps":-0}', "invalid_request", "steps", "/decode"),
    text("steps 01", b'{"session":"witness","steps":01}', path="/decode"),
    text(
        "steps of 400 digits",
        b'{"session":"witness","steps":%s}' % (b"9" * 400),
        "invalid_request",
        "steps",
        "/decode",
    ),
]


def get(name, path, status, code, param=ANY, method="GET", **headers):
    return case(f"{method} {name}", None, status, code, param, path, method, **headers)


PATHS = [
    *[
        get(path, path, 404, "not_found", None)
        for path in (
            "/nowhere",
            "//",
            "//prefill",
            "/prefill/",
            "/sessions/",
            "/sessions/a/b",
            "/sessions//tokens",
            "/sessions/a/",
            "/models/",
            "/models/a/b",
            "/.",
            "/../etc",
            "/Prefill",
            "/HEALTH",
            "/sessions/a/tensors/",
            "/index.html",
        )
    ],
    *[
        get(path, path, 405, "method_not_allowed", None, method)
        for method, path in (
            ("GET", "/prefill"),
            ("GET", "/decode"),
            ("PUT", "/prefill"),
            ("DELETE", "/decode"),
            ("DELETE", "/sessions"),
            ("PATCH", "/sessions/a"),
            ("POST", "/sessions/a"),
            ("PUT", "/sessions/a/tokens"),
            ("DELETE", "/health"),
            ("TRACE", "/health"),
            ("get", "/health"),
            ("BREW", "/health"),
            ("GET", "/sessions/a/fork"),
            ("DELETE", "/models/a"),
            ("GET", "/tokenize"),
        )
    ],
    get("nobody", "/sessions/nobody", 404, "session_not_found"),
    get("nobody", "/sessions/nobody", 404, "session_not_found", ANY, "DELETE"),
    get("no model", "/models/nobody", 404, "model_not_found"),
    *[
        get(f"id {path}", f"/sessions/{path}", 404, "session_not_found", "session")
        for path in (".", "..", "a" * 65, "a" * 5000, "a%20b", "%C3%A9", "a*b", "%FF")
    ],
    get("DELETE id", "/sessions/..", 404, "session_not_found", "session", "DELETE"),
    get("truncate id", "/sessions/a%20b/truncate", 404, "session_not_found", "session", "POST"),
    *[
        get(query, f"/sessions?{query}", 400, "invalid_request", param)
        for query, param in (
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=-1", "limit"),
            ("limit=1.5", "limit"),
            ("limit=x", "limit"),
            ("limit=", "limit"),
            ("limit", "limit"),
            ("limit=+5", "limit"),
            ("limit=1%00", "limit"),
            ("limit=99999999999999999999", "limit"),
            ("limit=5&limit=5", "limit"),
            ("after=a%20b", "after"),
            ("after=..", "after"),
            ("after=a&after=b", "after"),
            ("after=" + "a" * 65, "after"),
            ("offset=3", None),
        )
    ],
    get("query of another route", "/health?limit=1", 400, "invalid_request", None),
    get("query of a POST", "/prefill?session=a", 400, "invalid_request", None, "POST"),
]

X_SESSION = {"X-Session": "other"}
HEADERS = [
    case("another X-Session", GOOD, 400, "invalid_request", "session", **X_SESSION),
    case(
        "X-Session without session",
        {"inputs": [ROW]},
        400,
        "invalid_request",
        "session",
        **X_SESSION,
    ),
    case("bad X-Session", GOOD, 400, "invalid_request", "session", **{"X-Session": "a b"}),
    case(
        "decode, another X-Session",
        {"session": WITNESS},
        400,
        "invalid_request",
        "session",
        path="/decode",
        **X_SESSION,
    ),
    *[
        get(
            f"{path}, another X-Session",
            f"/sessions/{WITNESS}{path}",
            400,
            "invalid_request",
            "session",
            method,
            **X_SESSION,
        )
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("POST", "/verify"))
    ],
    case(
        "truncate, another X-Session",
        {"length": 0},
        400,
        "invalid_request",
        "session",
        path=f"/sessions/{WITNESS}/truncate",
        **X_SESSION,
    ),
    *[
        case(f"type {kind}", GOOD, 415, "unsupported_media_type", ANY, **{"Content-Type": kind})
        for kind in (
            "text/plain",
            "application/xml",
            "multipart/form-data; boundary=x",
            "application/jsonx",
            "application",
            "image/png",
        )
    ],
    case(
        "safetensors body",
        b"\0" * 16,
        400,
        "invalid_request",
        None,
        **{"Content-Type": "application/x-safetensors"},
    ),
    case(
        "truncate, safetensors body",
        b"\0" * 16,
        415,
        "unsupported_media_type",
        ANY,
        path=f"/sessions/{WITNESS}/truncate",
        **{"Content-Type": "application/x-safetensors"},
    ),
    case("accept image", GOOD, 406, "not_acceptable", ANY, Accept="image/png"),
    case("accept nothing", GOOD, 406, "not_acceptable", ANY, Accept="application/json;q=0"),
    case(
        "stream as image",
        {"session": WITNESS, "stream": True},
        406,
        "not_acceptable",
        ANY,
        path="/decode",
        Accept="image/png",
    ),
    get("health as image", "/health", 406, "not_acceptable", ANY, Accept="image/png"),
    get("metrics as JSON", "/metrics", 406, "not_acceptable", ANY, Accept="application/json"),
    *[
        get(f"host {host}", "/health", 403, "forbidden_host", ANY, Host=host)
        for host in (
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.2.nip.io",
            "evil.example:80",
            "[::2]",
            "",
        )
    ],
    *[
        case(f"origin {origin}", GOOD, 403, "forbidden_origin", ANY, Origin=origin)
        for origin in (
            "https://evil.example",
            "null",
            "http://localhost.evil.example",
            "file://",
            "http://127.0.0.1:1",
        )
    ],
    get("foreign origin", "/sessions", 403, "forbidden_origin", ANY, Origin="https://evil.example"),
    get(
        "foreign preflight",
        "/prefill",
        403,
        "forbidden_origin",
        ANY,
        "OPTIONS",
        Origin="https://evil.example",
    ),
]


def session(name, path, body, status, code, param=ANY):
    return case(f"{path} {name}", body, status, code, param, path=f"/sessions/{WITNESS}/{path}")


SESSIONS = [
    *[
        session(
            json.dumps(value)[:20], "truncate", {"length": value}, 400, "invalid_request", "length"
        )
        for value in NOT_WHOLE + [9]
    ],
    session("nothing", "truncate", {}, 400, "invalid_request", "length"),
    session("no body", "truncate", b"", 400, "invalid_request", "length"),
    session("unknown field", "truncate", {"length": 1, "at": 1}, 400, "invalid_request", None),
    session(
        "another length",
        "truncate",
        {"length": 1, "if_length": 3},
        409,
        "length_mismatch",
        "if_length",
    ),
    session("field", "cancel", {"now": True}, 400, "invalid_request", None),
    session("array", "cancel", b"[]", 400, "invalid_request", None),
    session("field", "verify", {"length": 1}, 400, "invalid_request", None),
    session("broken", "verify", b"{", 400, "invalid_json", None),
]

CASES = PREFILL + DECODE + TEXT + FLOATS + PATHS + HEADERS + SESSIONS


def test_there_are_enough():
    assert len(CASES) >= 100
    names = [one.name for one in CASES]
    assert len(set(names)) == len(names), {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize("one", CASES, ids=[one.name for one in CASES])
def test_refused(witness, one):
    reply = witness.client.request(one.method, one.path, one.body, one.headers)
    param = () if one.param is ANY else (one.param,)
    error = reply.error(one.status, one.code, *param)
    for sent in ("evil", "nobody"):
        assert sent not in error["message"], "an error echoes its request"
    witness.check()
