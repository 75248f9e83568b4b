"""The web page: what is served, to whom, and from where."""

import gzip
import re

import pytest

import contract

WEB = contract.ROOT / "clients" / "web"
FILES = sorted(path.name for path in WEB.iterdir())
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
GZIP = {"Accept-Encoding": "gzip, deflate, br"}
TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "json": "application/json",
}


def test_page_for_browsers_and_lines_for_others(client):
    page = client.get("/", **HTML)
    assert page.status == 200 and page.content_type == "text/html"
    assert page.body == (WEB / "index.html").read_bytes()
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "text/plain"}):
        lines = client.get("/", **headers)
        assert lines.content_type == "text/plain" and "curl" in lines.text
        assert lines.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("name", FILES)
def test_files(client, name):
    whole = (WEB / name).read_bytes()
    plain = client.get(f"/web/{name}")
    assert plain.status == 200 and plain.body == whole
    assert plain.content_type == TYPES[name.rsplit(".", 1)[1]]
    assert plain.headers["Content-Encoding"] is None
    packed = client.get(f"/web/{name}", **GZIP)
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == whole
    assert packed.headers["ETag"] != plain.headers["ETag"]
    refused = client.get(f"/web/{name}", **{"Accept-Encoding": "gzip;q=0"})
    assert refused.body == whole


def test_all_of_it_is_small(client):
    sizes = [len(client.get(f"/web/{name}", **GZIP).body) for name in FILES]
    assert sum(sizes) <= 150 * 1024


def test_headers(client):
    for reply in (client.get("/", **HTML), client.get("/web/main.js", **GZIP)):
        policy = reply.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';") and "unsafe" not in policy
        assert reply.headers["Cache-Control"] == "no-cache"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert {"Accept", "Accept-Encoding"} <= set(re.split(", *", reply.headers["Vary"]))


@pytest.mark.parametrize("headers", [{}, GZIP])
def test_unchanged(client, headers):
    etag = client.get("/web/main.js", **headers).headers["ETag"]
    assert re.fullmatch(r'"[0-9a-f]{16}"', etag)
    again = client.get("/web/main.js", **headers, **{"If-None-Match": etag})
    assert again.status == 304 and again.body == b""
    assert again.headers["ETag"] == etag and again.headers["Content-Encoding"] is None
    other = client.get("/web/main.js", **headers, **{"If-None-Match": '"0000000000000000"'})
    assert other.status == 200


NO_FILES = (
    "nope.js",
    "main.j",
    "main.js.gz",
    ".js",
    "-.js",
    "MAIN.JS",
    "..",
    ".",
    "%2e%2e",
    "%2e%2e%2findex.html",
    "..%2f..%2fMakefile",
    "sub%2fmain.js",
    "main.js%00",
    "a" * 80 + ".js",
)


@pytest.mark.parametrize("name", NO_FILES)
def test_no_such_file(client, name):
    client.get(f"/web/{name}").error(404, "not_found")


def test_folder_of_ones_own(launch, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.js").write_text("secret")
    (root / "index.html").write_text("<p>mine")
    (root / "link.js").symlink_to(tmp_path / "secret.js")
    (root / "folder.js").mkdir()
    (root / "large.js").write_bytes(b" " * (1 << 20))
    (root / "larger.js").write_bytes(b" " * ((1 << 20) + 1))
    client = launch("--web-root", root).client
    page = client.get("/", **HTML, **GZIP)
    assert page.text == "<p>mine" and page.headers["Content-Encoding"] is None
    etag = page.headers["ETag"]
    assert client.get("/", **HTML, **{"If-None-Match": etag}).status == 304
    (root / "index.html").write_text("<p>changed")
    assert client.get("/", **HTML, **{"If-None-Match": etag}).text == "<p>changed"
    assert len(client.get("/web/large.js").body) == 1 << 20
    for name in ("main.js", "link.js", "folder.js", "larger.js", "..%2fsecret.js", *NO_FILES):
        client.get(f"/web/{name}").error(404, "not_found")
    assert "curl" in client.get("/").text
