"""Servers that say what a test wants."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def http(status: str, body: str = "") -> bytes:
    """An answer."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n{body}".encode()


@contextmanager
def answering(answer: Callable[[str], bytes]) -> Iterator[str]:
    """The address of a server that answers what it is asked."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(answer(self.request.recv(4096).decode(errors="replace")))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
