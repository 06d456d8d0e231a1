"""`python -m rope_nd.explore`: what it writes, serves and refuses."""

import ast
import os
import threading
import urllib.error
import urllib.request
from http.server import HTTPServer
from pathlib import Path

import pytest

import rope_nd
from rope_nd.explore import __main__ as command
from rope_nd.explore import write


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(command, "page", lambda: "<!doctype html>é")


def test_it_writes_the_page_and_says_where(tmp_path, capsys):
    command.main([str(tmp_path / "a.html")])
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == "<!doctype html>é"
    assert capsys.readouterr().out == f"{tmp_path / 'a.html'}\n" and os.listdir(tmp_path) == ["a.html"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give a file to write, as encodings.html, or --serve"),
        (["README.md"], "'README.md' does not end in .html"),
        (["missing/a.html"], "there is no folder 'missing'; make it first"),
        (["folder.html"], "'folder.html' is a folder: give the name of a file in it"),
        (["--serve", "--port", "70000"], "--port 70000: give a number from 0"),
        (["--serve", "--port", "many"], "invalid int value: 'many'"),
    ],
)
def test_bad_input_ends_with_exit_code_2_the_value_and_the_mend(tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2 and told in capsys.readouterr().err


def test_a_file_is_written_whole_or_left_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "a.html"
    file.write_text("old")

    def broken(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="no space"):
        write(file, "new")
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["a.html"]


def test_a_port_in_use_is_refused_with_exit_code_2(capsys):
    with HTTPServer(("127.0.0.1", 0), command.handler(b"")) as taken, pytest.raises(SystemExit) as ended:
        command.main(["--serve", "--port", str(taken.server_address[1])])
    assert ended.value.code == 2 and "choose another file or port" in capsys.readouterr().err


def test_serve_opens_the_page_on_the_loopback_address_and_gives_nothing_else(monkeypatch, capsys):
    found = {}

    def visit(address):
        def look():
            found["page"] = urllib.request.urlopen(address).read().decode()
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + "etc/passwd")
            server[0].shutdown()

        found["address"] = address
        threading.Thread(target=look, daemon=True).start()

    server = []

    class Kept(HTTPServer):
        def __init__(self, *given):
            super().__init__(*given)
            server.append(self)

    monkeypatch.setattr(command, "HTTPServer", Kept)
    monkeypatch.setattr(command.webbrowser, "open", visit)
    command.main(["--serve"])
    assert found["page"] == "<!doctype html>é" and found["address"].startswith("http://127.0.0.1:")
    assert found["address"] in capsys.readouterr().out


def test_no_other_part_of_the_library_imports_explore():
    package = Path(rope_nd.__file__).parent
    for file in package.rglob("*.py"):
        if file.parent.name != "explore":
            for node in ast.walk(ast.parse(file.read_text())):
                assert not (isinstance(node, ast.ImportFrom) and "explore" in (node.module or "")), file
