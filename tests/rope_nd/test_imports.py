"""What importing the library costs and touches, and which file may import which."""

import ast
import subprocess
import sys
from pathlib import Path

import rope_nd

package = Path(rope_nd.__file__).parent
allowed = {
    "_check": set(),
    "positions": {"_check"},
    "freqs": {"_check"},
    "scaling": {"_check", "freqs"},
    "turning": {"kernels"},
    "rotation": {"_check", "positions", "turning"},
    "grids": {"positions", "rotation"},
    "rope": {"_check", "positions", "freqs", "grids", "scaling", "rotation"},
    "absolute": {"_check", "positions", "scaling", "rope"},
    "codes": {"_check", "absolute", "positions"},
    "learned": {"_check", "absolute", "positions"},
    "bias": {"positions"},
    "relative": {"_check", "bias", "positions"},
    "fields": {"_check", "bias", "positions"},
    "variants": {"_check", "positions", "rope", "rotation", "scaling"},
    "polar": {"_check", "positions", "rotation", "variants"},
    "parabola": {"positions", "rotation", "scaling", "variants"},
    "convert": {"_check"},
    "precision": {"_check", "absolute", "bias", "freqs", "polar", "rope", "rotation"},
    "tables": {"absolute", "bias", "precision"},
    "registry": {
        "_check",
        "absolute",
        "bias",
        "codes",
        "fields",
        "freqs",
        "learned",
        "lie",
        "parabola",
        "polar",
        "presets",
        "relative",
        "rope",
        "scaling",
        "variants",
    },
}

probe = """
import builtins, socket, sys, os
import torch, einops
before = set(sys.modules)
def refuse(*a, **k): raise AssertionError(f"import opened a socket or a file to write: {a}")
socket.socket.connect = refuse
plain = builtins.open
builtins.open = lambda f, mode="r", *a, **k: refuse(f) if set(mode) & set("wax+") else plain(f, mode, *a, **k)
sys.dont_write_bytecode = True
import rope_nd
print(sorted({m.split(".")[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""


def test_import_pulls_in_torch_and_einops_alone_opens_no_socket_and_writes_nothing():
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['rope_nd']", out.stdout


def test_the_core_imports_torch_and_its_own_types_only():
    for name, others in allowed.items():
        for node in ast.walk(ast.parse((package / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                targets = {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
                assert targets <= others, f"{name} imports {targets}"
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                for module in modules:
                    root = module.split(".")[0]
                    assert root in {"torch", "einops"} | set(sys.stdlib_module_names), f"{name} imports {root}"


def test_no_assert_reaches_a_user():
    for file in package.rglob("*.py"):
        asserts = [node.lineno for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Assert)]
        assert not asserts, f"{file}: {asserts}"
