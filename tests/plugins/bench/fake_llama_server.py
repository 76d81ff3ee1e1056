"""A llama-server for tests: streams as many words as are asked for. Refuses what ours must not send.

``fake_llama_server.py -m MODEL --port N -np N [--lora PATH ...]``, other options are taken and forgotten.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = int(sys.argv[sys.argv.index("--port") + 1])
LORAS = sys.argv.count("--lora")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scales = [one["scale"] for one in body.get("lora", [])]
        if self.path != "/completion" or len(scales) != LORAS or sum(scales) > 1:
            self.send_error(400)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(body["n_predict"]):
            self.chunk({"content": "a", "stop": False, "tokens_predicted": number + 1})
        self.chunk({"content": "", "stop": True, "tokens_predicted": body["n_predict"]})
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data: dict[str, Any]) -> None:
        frame = b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
