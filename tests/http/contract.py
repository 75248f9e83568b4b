"""server/openapi.json as the judge of replies: what the server sends must be described there."""

import json
import re
from functools import lru_cache
from pathlib import Path

import jsonschema

ROOT = Path(__file__).resolve().parents[2]
OPENAPI = ROOT / "server" / "openapi.json"
DOC = json.loads(OPENAPI.read_text())

ERROR_MAX_BYTES = 1024
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"

_RESOLVER = jsonschema.RefResolver("", DOC)
_PATHS = [
    (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), path) for path in DOC["paths"]
]
# What may answer before a route is looked up: framing, Host and Origin, transfer codings, load.
_BEFORE_ROUTING = {400, 403, 408, 413, 501, 503}


def template_of(path):
    """The path template that `path` matches, or None. A literal path beats a template."""
    matches = [template for pattern, template in _PATHS if pattern.fullmatch(path)]
    return min(matches, key=lambda template: template.count("{"), default=None)


def methods_of(template):
    """The methods a path answers, as its Allow header must list them."""
    methods = {key.upper() for key in DOC["paths"][template] if key != "parameters"}
    return methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())


def parse_json(text):
    """A JSON text as the contract wants it: no NaN or Infinity, no duplicate key; -0 stays -0."""

    def constant(name):
        raise ValueError(f"{name} in a reply")

    def pairs(items):
        made = dict(items)
        if len(made) != len(items):
            raise ValueError("duplicate key in a reply")
        return made

    def integer(digits):
        return -0.0 if digits == "-0" else int(digits)

    return json.loads(text, parse_constant=constant, object_pairs_hook=pairs, parse_int=integer)


@lru_cache(maxsize=None)
def _validator(pointer):
    return jsonschema.Draft202012Validator({"$ref": pointer}, resolver=_RESOLVER)


def _pointer(*keys):
    return "#/" + "/".join(key.replace("~", "~0").replace("/", "~1") for key in keys)


def _deref(node):
    while "$ref" in node:
        _, node = _RESOLVER.resolve(node["$ref"])
    return node


def _thin(value):
    """The same document with rows of numbers cut short, which leaves their schema little to do."""
    if isinstance(value, dict):
        return {key: _thin(item) for key, item in value.items()}
    if isinstance(value, list):
        if len(value) > 4 and set(map(type, value)) <= {int, float}:
            return value[:4]
        return [_thin(item) for item in value]
    return value


def check_schema(value, *keys):
    """value matches the schema at these keys of openapi.json, or AssertionError."""
    error = next(_validator(_pointer(*keys)).iter_errors(_thin(value)), None)
    where = "/".join(keys)
    assert error is None, f"{where}: {error.message} at {list(error.absolute_path)}"


_STEPS_SEEN = set()


def check_event(value):
    """One object of a stream. Steps are many and alike: the schema sees each kind of them once."""
    if "done" not in value:
        kinds = tuple((key, type(item)) for key, item in value.items())
        kind = (kinds, frozenset(map(type, value.get("output", ()))))
        if kind in _STEPS_SEEN:
            return
        _STEPS_SEEN.add(kind)
    check_schema(value, "components", "schemas", "Event")


def check_error(reply):
    """A reply's body is an error object of the contract."""
    assert reply.content_type == "application/json", f"{reply.status}: {reply.content_type}"
    assert len(reply.body) <= ERROR_MAX_BYTES, f"{reply.status}: {len(reply.body)} bytes of error"
    check_schema(reply.json, "components", "schemas", "ErrorReply")
    if reply.status in (429, 503) or reply.json["error"]["code"] == "session_busy":
        assert int(reply.headers["Retry-After"]) >= 1


def check_reply(method, target, reply):
    """A reply to `method target` is documented: its status, content type, headers and body.

    Streams are left to check_event, apart from their content type.
    """
    has_body = method != "HEAD" and reply.status != 204
    if reply.status >= 400 and has_body:
        check_error(reply)
    template = template_of(target.split("?", 1)[0])
    if template is None:
        assert reply.status in _BEFORE_ROUTING | {404}, f"{reply.status} for {target}"
        return
    if method not in methods_of(template):
        assert reply.status in _BEFORE_ROUTING | {405}, f"{reply.status} for {method} {target}"
    if reply.status == 405 or (method == "OPTIONS" and reply.status == 204):
        allow = {name.strip() for name in reply.headers["Allow"].split(",")}
        assert allow == methods_of(template)
        return
    if method == "OPTIONS" or method not in methods_of(template):
        return
    key = "get" if method == "HEAD" else method.lower()
    responses = DOC["paths"][template][key]["responses"]
    status = str(reply.status)
    assert status in responses, f"{method} {template}: {status} is not documented"
    keys = ["paths", template, key, "responses", status]
    response = responses[status]
    if "$ref" in response:
        keys = response["$ref"].lstrip("#/").split("/")
        response = _deref(response)
    for name, header in response.get("headers", {}).items():
        if header.get("required"):
            assert name in reply.headers, f"{method} {template}: {status} without {name}"
    if "content" not in response:
        assert reply.body == b""
        return
    assert reply.content_type in response["content"], f"{template}: {reply.content_type}"
    if reply.content_type == "application/json" and has_body:
        check_schema(reply.json, *keys, "content", "application/json", "schema")
