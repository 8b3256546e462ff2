"""A server on the loopback that grades as a test wants, for critics that are asked over the network."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(BaseHTTPRequestHandler):
    """Replies to a chat request with what the test asked for; keeps the requests."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        status, reply, wait = self.server.answer(body)
        time.sleep(wait)
        with contextlib.suppress(OSError):  # the other side has given up
            self.send_response(status)
            self.end_headers()
            for start in range(0, len(reply), self.server.piece):
                self.wfile.write(reply[start : start + self.server.piece])
                time.sleep(self.server.drip)

    def log_message(self, *_):
        """No lines on the test's output."""


def said(content):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()


@contextlib.contextmanager
def serving():
    """A server on a free port of the loopback; gives 4 unless its `answer` says otherwise."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    server.requests, server.piece, server.drip = [], 1 << 20, 0
    server.answer = lambda body: (200, said("Both fit.\nScore: 4"), 0)
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
