"""Promise 15, no code from data, read off the syntax trees of rope_nd, models and train; and the scanner itself on bad samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNPICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "pandas"}
TIMM = {"load_checkpoint", "load_state_dict", "resume_checkpoint"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput"}
REMOTE = {"torch.hub.load", "torch.package.PackageImporter", "torch.jit.load"}
NEVER = {"trust_remote_code", "allow_pickle", "shell"}  # as an argument, but for a plain False
SAFE_YAML = {"SafeLoader", "CSafeLoader"}
EXTRACTING = {"extract", "extractall", "unpack_archive"}


def told(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; of anything else what comes after the dot."""
    if isinstance(node, ast.Attribute):
        return f"{told(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return names


def is_plain(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def of_call(node: ast.Call, name: str) -> Iterator[str]:
    """What is wrong with a call of `name`."""
    given = {word.arg: word.value for word in node.keywords}
    loads = name == "torch.load" or (name.startswith("timm.") and name.split(".")[-1] in TIMM)
    if loads and not is_plain(given.get("weights_only"), True):
        yield f"{name} without weights_only=True"
    if name in SHELLS or name in REMOTE:
        yield name
    if name.split(".")[0] in ("yaml", "ruamel") and name.split(".")[-1] not in ("safe_load", "safe_load_all", "dump", "safe_dump"):
        chosen = given.get("Loader") or (node.args[1] if len(node.args) > 1 else None)
        if name != "yaml.load" or chosen is None or told(chosen).split(".")[-1] not in SAFE_YAML:
            yield f"{name} without a safe loader"
    if name.split(".")[-1] in EXTRACTING and "." in name:
        chosen = given.get("filter")
        if not (isinstance(chosen, ast.Constant) and chosen.value == "data"):
            yield f"{name} without filter='data'"
    yield from (f"{word}=" for word in NEVER & given.keys() if not is_plain(given[word], False))


def wrong(source: str) -> list[str]:
    """Every place of a source text that would run code out of data, as `line: what`."""
    tree = ast.parse(source)
    names, found = imported(tree), []
    for node in ast.walk(tree):
        said: list[str] = []
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            said = [f"import {name}" for name in modules if name.split(".")[0] in UNPICKLING]
        elif isinstance(node, ast.Name) and node.id in ("eval", "exec") and isinstance(node.ctx, ast.Load):
            said = [f"the builtin {node.id}"]
        elif isinstance(node, ast.Attribute) and told(node) in ("builtins.eval", "builtins.exec"):
            said = [told(node)]
        elif isinstance(node, ast.Dict):
            keys = {key.value: value for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant)}
            said = [f"{word!r} in a dict" for word in NEVER & keys.keys() if not is_plain(keys[word], False)]
        elif isinstance(node, ast.Call):
            first, dot, rest = told(node.func).partition(".")
            said = list(of_call(node, names.get(first, first) + dot + rest))
            if said == [] and told(node.func) in ("__import__", "importlib.import_module", "import_module") and node.args:
                module = node.args[0]
                said = ["import by name"] if isinstance(module, ast.Constant) and module.value in UNPICKLING else []
        found += [f"{getattr(node, 'lineno', 0)}: {one}" for one in said]
    return found


def test_promise_15_no_code_comes_from_data():
    files = [path for folder in ("rope_nd", "models", "train") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    assert {f"{path.relative_to(ROOT)}:{one}" for path in files for one in wrong(path.read_text())} == set()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import numpy, pickle as p",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "import importlib\nimportlib.import_module('pickle')",
        "__import__('marshal')",
        "import numpy as np\nnp.load('a.npy', allow_pickle=True)",
        "import numpy as np\nnp.load('a.npy', allow_pickle=chosen)",
        "np.load(path, **{'allow_pickle': True})",
        "eval('1 + 1')",
        "exec(text)",
        "run = eval",
        "import builtins\nbuiltins.exec(text)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=safe)",
        "import torch\ntorch.load(path, **options)",
        "from torch import load\nload(path)",
        "import torch as t\nt.load(path)",
        "from timm.models import load_checkpoint\nload_checkpoint(model, path)",
        "from timm.models._helpers import load_state_dict as get\nget(path)",
        "import torch\ntorch.hub.load('owner/name', 'model')",
        "import yaml\nyaml.load(text)",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "from yaml import full_load\nfull_load(text)",
        "import yaml\nyaml.unsafe_load(text)",
        "tar.extractall(folder)",
        "tar.extractall(folder, filter='tar')",
        "tar.extract(member, folder, filter=chosen)",
        "import shutil\nshutil.unpack_archive(path, folder)",
        "create(name, trust_remote_code=True)",
        "options = {'trust_remote_code': True}",
        "import subprocess\nsubprocess.run(command, shell=True)",
        "from subprocess import Popen as run\nrun(command, shell=1)",
        "import os\nos.system('ls')",
        "from os import system\nsystem('ls')",
        "import subprocess as s\ns.getoutput('ls')",
    ],
)
def test_the_scanner_sees_what_runs_code(source):
    assert wrong(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "import ast\nast.literal_eval(text)",
        "model.eval()",
        "model.to(device).eval()",
        "spec.loader.exec_module(module)",
        "import torch\ntorch.load(path, weights_only=True)",
        "model.load_state_dict(weights)",
        "from safetensors.torch import load\nload(data)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import yaml\nyaml.safe_load(text)",
        "import yaml\nyaml.load(text, Loader=yaml.CSafeLoader)",
        "tar.extract(member, folder, filter='data')",
        "import subprocess\nsubprocess.run(['ls', folder])",
        "from train import archives\narchives.unpack(path, folder)",
    ],
)
def test_the_scanner_leaves_the_rest_alone(source):
    assert wrong(source) == []
