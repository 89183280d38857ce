"""Servers that say what a test wants, and where processes listen."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


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


def listeners(family: list[psutil.Process]) -> set[str]:
    """The addresses on which processes listen."""
    results: set[str] = set()
    for process in family:
        with suppress(psutil.Error):
            results |= {c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return results
