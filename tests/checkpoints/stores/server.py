# SPDX-License-Identifier: Apache-2.0
"""The part of Google Cloud Storage's JSON interface that TensorStore uses, over a folder.

python tests/checkpoints/stores/server.py FOLDER

Prints its port and serves ``bucket/name`` from the file of that name in the folder. TensorStore
uses the server named in the environment variable TENSORSTORE_GCS_HTTP_URL.
"""

import http.server
import json
import os
import pathlib
import re
import sys
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    folder: pathlib.Path

    def do_GET(self):
        bucket, name, options = self._parsed()
        if name is None:
            return self._respond(200, {"items": self._listed(bucket, options.get("prefix", ""))})
        file = self.folder / bucket / name
        if not file.is_file():
            return self._respond(404, {})
        if options.get("alt") != "media":
            return self._respond(200, self._metadata(file, name))
        data, headers = (
            file.read_bytes(),
            {"x-goog-generation": self._metadata(file, name)["generation"]},
        )
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if not part:
            return self._respond(200, data, headers)
        begin, end = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
        headers["content-range"] = f"bytes {begin}-{end}/{len(data)}"
        return self._respond(206, data[begin : end + 1], headers)

    def do_POST(self):
        bucket, _, options = self._parsed()
        data = self.rfile.read(int(self.headers["content-length"]))
        file = self.folder / bucket / options["name"]
        there = self._metadata(file, "")["generation"] if file.is_file() else "0"
        if options.get("ifGenerationMatch", there) != there:
            return self._respond(412, {})
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{self.client_address[1]}")
        partial.write_bytes(data)
        os.replace(partial, file)
        return self._respond(200, self._metadata(file, options["name"]))

    def do_DELETE(self):
        bucket, name, _ = self._parsed()
        (self.folder / bucket / name).unlink(missing_ok=True)
        self._respond(204, b"")

    def log_message(self, *_):
        """Log nothing."""

    def _parsed(self):
        """Bucket, object name (None for a listing) and options of the request."""
        address = urllib.parse.urlsplit(self.path)
        options = dict(urllib.parse.parse_qsl(address.query))
        bucket, name = re.fullmatch(r".*/b/([^/]+)/o(?:/(.*))?", address.path).groups()
        return bucket, name and urllib.parse.unquote(name), options

    def _listed(self, bucket, prefix):
        root = self.folder / bucket
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        return [self._metadata(root / name, name) for name in names if name.startswith(prefix)]

    def _metadata(self, file, name):
        found = file.stat()
        return {
            "name": name,
            "size": str(found.st_size),
            "generation": str(found.st_mtime_ns),
            "metageneration": "1",
            "updated": "2026-01-01T00:00:00Z",
            "timeCreated": "2026-01-01T00:00:00Z",
        }

    def _respond(self, status, content, headers=()):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**dict(headers), "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    Handler.folder = pathlib.Path(sys.argv[1])
    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
