"""A real HTTP server on this machine that misbehaves on demand."""

import contextlib
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """`serve(path, body, fault)` says what a path gives; `requests` lists the paths that were asked for."""

    def __init__(self):
        self.routes = {}
        self.requests = []
        self.released = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._http.server_address[1]}/"

    def serve(self, path, body, fault=None):
        self.routes[f"/{path}"] = (body, fault)

    def close(self):
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_GET(self):
                server.requests.append(self.path)
                body, fault = server.routes.get(self.path, (b"", "missing"))
                with contextlib.suppress(OSError):
                    getattr(self, f"_{fault}" if fault else "_good")(body)

            def _head(self, length, status=200, **more):
                self.send_response(status)
                self.send_header("Content-Length", str(length))
                for key, value in more.items():
                    self.send_header(key.replace("_", "-"), value)
                self.end_headers()

            def _good(self, body):
                self._head(len(body))
                self.wfile.write(body)

            def _missing(self, body):
                self._head(9, 404)
                self.wfile.write(b"not found")

            def _broken(self, body):
                self._head(0, 503)

            def _truncated(self, body):
                self._head(len(body))
                self.wfile.write(body[: len(body) // 2])

            def _silently_truncated(self, body):  # no length announced: only the content can tell
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body[: len(body) // 2])

            def _stalled(self, body):  # who is patient gets the rest
                self._head(len(body))
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                server.released.wait(10)
                self.wfile.write(body[len(body) // 2 :])

            def _silent(self, body):
                server.released.wait(10)
                self._good(body)

            def _reset(self, body):
                self._head(len(body))
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                # Closing with a linger time of zero sends RST.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

            def _endless(self, body):
                self.send_response(200)
                self.end_headers()
                while not server.released.is_set():
                    self.wfile.write(bytes(1 << 16))

            def _slow(self, body):
                self._head(len(body))
                for start in range(0, len(body), 64):
                    self.wfile.write(body[start : start + 64])
                    self.wfile.flush()
                    if server.released.wait(0.01):
                        return

            def _decoded(self, body):  # a server that announces gzip as an encoding, which clients take off
                self._head(len(body), Content_Encoding="gzip")
                self.wfile.write(body)

            def _nonsense(self, body):
                self.send_response(200)
                self.send_header("Content-Length", "many")
                self.end_headers()
                self.wfile.write(body)

        return Handler


@contextlib.contextmanager
def running():
    server = Server()
    try:
        yield server
    finally:
        server.close()


def closed_port():
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
