"""Serves a folder's files to fsspec's WebHDFS client, so that a stream can be read over a link.

python folder_server.py FOLDER HOST PORT
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Handler(BaseHTTPRequestHandler):
    """Three operations of WebHDFS: LISTSTATUS, GETFILESTATUS and OPEN."""

    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    folder: Path

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        path = self.folder / Path(url.path).name
        if query["op"] == "LISTSTATUS":
            files = [self._status(file) for file in self.folder.iterdir()]
            self._answer(200, json.dumps({"FileStatuses": {"FileStatus": files}}).encode())
        elif not path.exists():
            missing = {"exception": "FileNotFoundException", "message": path.name}
            self._answer(404, json.dumps({"RemoteException": missing}).encode())
        elif query["op"] == "GETFILESTATUS":
            self._answer(200, json.dumps({"FileStatus": self._status(path)}).encode())
        else:
            low = int(query.get("offset", 0))
            self._answer(200, path.read_bytes()[low : low + int(query["length"])])

    def _status(self, path: Path) -> dict[str, Any]:
        kind, about = "DIRECTORY" if path.is_dir() else "FILE", path.stat()
        return {"pathSuffix": path.name, "type": kind, "length": about.st_size}

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    Handler.folder = Path(sys.argv[1])
    with ThreadingHTTPServer((sys.argv[2], int(sys.argv[3])), Handler) as server:
        server.serve_forever()
