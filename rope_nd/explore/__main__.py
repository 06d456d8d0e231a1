"""`python -m rope_nd.explore FILE.html`: write the page; `--serve` shows it on this machine alone."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from .._command import Parser, run
from . import page, write


def handler(body: bytes) -> type[BaseHTTPRequestHandler]:
    """What answers requests for the page, and for nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    return Handler


def serve(text: str, port: int) -> None:
    """Serve the page on the loopback address until interrupted, and open it."""
    with HTTPServer(("127.0.0.1", port), handler(text.encode())) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        print(f"{address} (end with Ctrl-C)", flush=True)
        webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def trouble(file: Path | None, serving: bool, port: int) -> str:
    """What is wrong with the command line, the value and the mend, or nothing."""
    if file is None:
        return "" if serving else "nothing to do: give a file to write, as encodings.html, or --serve"
    if file.suffix not in (".html", ".htm"):
        return f"{str(file)!r} does not end in .html: give the page a name that does, so that no other file is overwritten"
    if file.is_dir():
        return f"{str(file)!r} is a folder: give the name of a file in it, as {str(file / 'encodings.html')!r}"
    if not file.absolute().parent.is_dir():
        return f"{str(file)!r}: there is no folder {str(file.parent)!r}; make it first"
    return ""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = Parser(prog="python -m rope_nd.explore", description="Write a page that shows rotary encodings.")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.html", help="write the page here")
    parser.add_argument("--serve", action="store_true", help="serve the page on 127.0.0.1 and open it in a browser")
    parser.add_argument("--port", type=int, default=0, help="of --serve (default: any that is free)")
    given = parser.parse_args(arguments)
    wrong = trouble(given.file, given.serve, given.port)
    if not 0 <= given.port <= 65535:
        wrong = f"--port {given.port}: give a number from 0 (any free port) to 65535"
    if wrong:
        parser.error(wrong)
    text = page()
    try:
        if given.file:
            write(given.file, text)
            print(given.file)
        if given.serve:
            serve(text, given.port)
    except OSError as error:
        parser.error(f"{error}: choose another file or port")


if __name__ == "__main__":
    run(main)
