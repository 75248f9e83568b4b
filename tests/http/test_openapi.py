"""The API's description is itself in order, and is what the server serves."""

import json
import re

import jsonschema
import pytest

import contract

DOC = contract.DOC
OPERATIONS = [
    (path, method, operation)
    for path, item in DOC["paths"].items()
    for method, operation in item.items()
]
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


def walk(node, path=()):
    """Every (path, dict) of the document; what examples hold is not part of it."""
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            if key not in ("example", "examples", "default", "const", "enum"):
                yield from walk(value, (*path, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from walk(value, (*path, i))


def schemas(node, path=()):
    """Every (path, schema) that stands under a `schema` key, and the component schemas."""
    for where, item in walk(node, path):
        if "schema" in item:
            yield (*where, "schema"), item["schema"]
    for name, schema in node["components"]["schemas"].items():
        yield ("components", "schemas", name), schema


def test_served(client):
    reply = client.get("/openapi.json")
    assert reply.status == 200
    assert reply.json == json.loads(contract.OPENAPI.read_text())


def test_references_resolve_and_are_used():
    used = set()
    for path, node in walk(DOC):
        if isinstance(node.get("$ref"), str):
            keys = node["$ref"].split("/")
            assert keys[0] == "#" and keys[1] == "components", path
            assert keys[3] in DOC["components"][keys[2]], f"{path}: {node['$ref']}"
            used.add((keys[2], keys[3]))
    defined = {(kind, name) for kind, items in DOC["components"].items() for name in items}
    assert used == defined


def test_operations_are_complete():
    ids = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(ids)) == len(ids)
    tags = {tag["name"] for tag in DOC["tags"]}
    for path, method, operation in OPERATIONS:
        assert method in METHODS, path
        assert operation["summary"], path
        assert set(operation["tags"]) <= tags, path
        assert operation["responses"], path
        for status in operation["responses"]:
            assert re.fullmatch(r"[2-5]\d\d", status), path
        parameters = [contract._deref(parameter) for parameter in operation.get("parameters", [])]
        in_path = {p["name"] for p in parameters if p["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path)), path
        assert all(p["required"] for p in parameters if p["in"] == "path"), path


def test_schemas_are_valid():
    found = list(schemas(DOC))
    assert len(found) > 40
    for path, schema in found:
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            pytest.fail(f"{path}: {error.message}")


def test_objects_are_closed():
    """Nothing is sent or taken that is not described."""
    for path, schema in contract.DOC["components"]["schemas"].items():
        for where, node in walk(schema, (path,)):
            if node.get("type") == "object" and where[-1] != "example":
                assert "additionalProperties" in node, where


def test_examples_match_their_schemas():
    count = 0
    for path, node in walk(DOC):
        for example in node["examples"] if isinstance(node.get("examples"), list) else []:
            contract.check_schema(example, *map(str, path))
            count += 1
        if "schema" in node and isinstance(node.get("examples"), dict):
            for example in node["examples"].values():
                contract.check_schema(example["value"], *map(str, path), "schema")
                count += 1
    assert count > 20


def test_every_error_code_is_documented():
    """Each code of the Error schema can be an error of some reply, and the other way round."""
    codes = set(DOC["components"]["schemas"]["Error"]["properties"]["code"]["enum"])
    named = set()
    for response in DOC["components"]["responses"].values():
        schema = response["content"]["application/json"]["schema"]
        named |= set(schema["allOf"][1]["properties"]["error"]["properties"]["code"]["enum"])
    assert named <= codes
