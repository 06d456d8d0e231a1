"""One plain sequence beside the images: a 1-D task trained at 512 tokens and tested at 512 and 1,024.

python -m train.sequence --encodings none learned sinusoidal axial --scalings none pi ntk yarn

The target at each position is the token `shift` places back, of a row of random tokens. Nothing but positions helps: without
them the chance is one in `vocabulary` (a little more for counting which token of the row is the most frequent). What is read is
a relative distance of a few tokens, at every place of the row; it asks nothing of long distances, and the score is over the
whole row, so half of a row of twice the length is at trained positions.

Accuracy in %, seed 0, one thread of a CPU, 13 to 17 s an encoding (other seeds: sinusoidal 79 and 82, rotary 99.8 or more):

    encoding            512     1024 none   pi     ntk     yarn
    none                7       6
    learned             7                   6
    sinusoidal          100     79          7      92      97
    axial, mixed        100     100         6      100     100

The learned table does not find the task in 160 steps (nor in 300), so its 1024 says nothing of stretching.
Interpolation without fine-tuning halves every distance: the rotary model then mostly reads the token six places back.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from rope_nd.registry import ROTARY, Host, list_encodings, make, scalings
from rope_nd.scaling import RULES, check_temperature
from rope_nd.wrapping import Wrapped
from rope_nd.wrapping.attention import WrappedAttention
from rope_nd.wrapping.model import Settings
from train import cli
from train.evaluate import interval
from train.optimisation import optimizer
from train.rules import Rule

STRETCHES = "none", "pi", "ntk", "dynamic_ntk", "yarn", "llama3"  # all the same up to the trained length


@dataclass(frozen=True)
class SequenceTask:
    """What is trained and tested; the default is sized for one CPU core."""

    tokens: int = 512
    test_tokens: tuple[int, ...] = (512, 1024)
    test_sequences: int = 32
    vocabulary: int = 16
    shift: int = 3
    dim: int = 64
    depth: int = 2
    heads: int = 1
    batch: int = 4
    steps: int = 160
    opt: str = "muon"
    lr: float = 2e-2
    weight_decay: float = 0.05
    theta: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("vocabulary", "shift", "depth", "heads", "batch", "steps", "test_sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give a whole number of at least 1")
        if short := [n for n in (self.tokens, *self.test_tokens) if n <= self.shift]:
            raise ValueError(f"{short[0]} tokens with shift={self.shift}: no position has a target, give more than {self.shift}")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim}, heads={self.heads}: the one must be a multiple of the other")


def draw(task: SequenceTask, seed: int, step: int, tokens: int, count: int) -> Tensor:
    """Rows of random tokens `[count, tokens]`, a function of its arguments; step -1 is the test."""
    numbers = np.random.default_rng((seed, tokens, step + 1)).integers(task.vocabulary, size=(count, tokens))
    return torch.from_numpy(numbers)


def pairs(logits: Tensor, rows: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Logits `[B, N, V]` of the positions that have a target, and the targets `[B, N - shift]`: the tokens `shift` places back."""
    return logits[:, shift:], rows[:, :-shift]


class Reader(Wrapped):
    """A tiny transformer over tokens: `[B, N]` -> logits `[B, N, vocabulary]`, at any length.

    Scaling and temperature hold no weights: a model built with others takes the same state dict.
    """

    num_prefix_tokens = 0

    def __init__(self, encoding: str, task: SequenceTask, *, scaling: str = "none", temperature: str = "none") -> None:
        super().__init__()
        trained, factor = (task.tokens,), None if temperature == "none" else temperature
        check_temperature(factor)
        host = Host(task.dim, task.heads, task.dim // task.heads, task.depth, trained, self.num_prefix_tokens)
        options: dict[str, Any] = {"scaling": scaling}
        if encoding in ROTARY:
            fixed = encoding in ("wavelet_rotary", "pape", "comrope_ap", "comrope_ld")  # whose scales are not a matter of theta
            options |= {"temperature": factor, **({} if fixed else {"theta": task.theta})}
        self.wrapped = Settings(1, trained, frozenset(), factor, {})
        self.encoding, self.own_rotary = make(encoding, 1, host, **options), None
        self.embed = nn.Embedding(task.vocabulary, task.dim)
        nn.init.normal_(self.embed.weight, std=0.3)  # below the codes of an absolute encoding, which are not read otherwise
        self.blocks = nn.ModuleList(Block(task.dim, task.heads, qkv_bias=True) for _ in range(task.depth))
        for layer, block in enumerate(self.blocks):
            block.attn.__class__, block.attn.layer = WrappedAttention, layer
        self.norm = nn.LayerNorm(task.dim)
        self.head = nn.Linear(task.dim, task.vocabulary)

    def forward(self, rows: Tensor) -> Tensor:
        extent, tokens = (rows.shape[1],), self.embed(rows)  # [B, N, C]
        points = self._points(self.encoding, extent, len(rows), {})
        code, where = self._code(points, extent), self._where(points, extent)
        tokens = tokens if code is None else tokens + code
        for block in self.blocks:
            tokens = block(tokens, where)
        return self.head(self.norm(tokens))

    def no_weight_decay(self) -> set[str]:
        return {"embed.weight", *(name for name, _ in self.named_parameters() if name.startswith("encoding."))}


def pace(step: int, steps: int) -> float:
    """Share of the learning rate: a short warm-up, then half a cosine down."""
    return min(1.0, (step + 1) / max(1, steps // 20)) * (1 + math.cos(math.pi * step / steps)) / 2


def fit(encoding: str, task: SequenceTask, seed: int, report: Callable[[dict[str, Any]], None] | None = None) -> Reader:
    """A trained model. `report` hears about the loss (mean since the last word) ten times."""
    torch.manual_seed(seed)
    model = Reader(encoding, task)
    optimize = optimizer(model, task.opt, task.lr, task.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimize, lambda step: pace(step, task.steps))
    started, losses = time.perf_counter(), []
    for step in range(task.steps):
        rows = draw(task, seed, step, task.tokens, task.batch)
        logits, targets = pairs(model(rows), rows, task.shift)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimize.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimize.step()
        schedule.step()
        losses.append(loss.item())
        if report and (step + 1) * 10 // task.steps > step * 10 // task.steps:
            facts = {"step": step + 1, "steps": task.steps, "loss": float(np.mean(losses))}
            report({"event": "step", "encoding": encoding, "seed": seed, **facts, "seconds": time.perf_counter() - started})
            losses.clear()
    return model


@torch.inference_mode()
def measure(model: Reader, task: SequenceTask, seed: int, tokens: int) -> dict[str, float]:
    """Accuracy over all scored positions, with the 95 % bootstrap interval over sequences."""
    right = []
    for rows in draw(task, seed, -1, tokens, task.test_sequences).split(task.batch):
        logits, targets = pairs(model(rows), rows, task.shift)
        right.append((logits.argmax(-1) == targets).double().mean(-1))  # [B]
    shares = torch.cat(right)  # [test_sequences]
    low, high = interval(shares, torch.arange(len(shares)))
    return {"accuracy": shares.mean().item(), "low": low, "high": high}


def applicable(encoding: str, rules: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """What a rule amounts to for an encoding: those that mean nothing are none, a learned table is always stretched."""
    known = scalings(encoding) if encoding in list_encodings() else ()

    def applied(rule: str) -> str:
        if encoding == "learned":
            return "pi"
        return "none" if known and rule in RULES and rule not in known else rule

    return list(dict.fromkeys((applied(rule.scaling), rule.temperature) for rule in (Rule(*rule) for rule in rules)))


def run(
    encoding: str,
    task: SequenceTask,
    *,
    scalings: Sequence[str] = ("none",),
    temperatures: Sequence[str] = ("none",),
    rules: Sequence[Sequence[str]] | None = None,
    seed: int = 0,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Train one model, test it at each length under each scaling and temperature: one row a measurement.

    `rules`: chosen pairs of a scaling and a temperature, in place of every scaling with every temperature.
    The global random state is left as it was. ValueError for names that rope_nd does not know.
    """
    choices = applicable(encoding, itertools.product(scalings, temperatures) if rules is None else rules)
    with torch.random.fork_rng(devices=[]):
        for scaling, temperature in choices:
            Reader(encoding, task, scaling=scaling, temperature=temperature)  # a wrong name fails before the training
        weights = fit(encoding, task, seed, report).state_dict()
        found: dict[tuple[object, ...], dict[str, float]] = {}
        rows = []
        for tokens in task.test_tokens:
            for scaling, temperature in choices:
                same = tokens <= task.tokens and scaling in STRETCHES
                key = (tokens, "none" if same else scaling, "none" if tokens <= task.tokens else temperature)
                if key not in found:
                    model = Reader(encoding, task, scaling=scaling, temperature=temperature)
                    model.load_state_dict(weights)
                    found[key] = measure(model.eval(), task, seed, tokens)
                where = {"encoding": encoding, "seed": seed, "test": "sequence", "height": 1, "width": tokens}
                how = {"scaling": scaling, "temperature": temperature, **found[key]}
                rows.append({**where, **how, "images": task.test_sequences, "ratio": tokens / task.tokens})
    return rows


def show(rows: Sequence[dict[str, Any]]) -> Table:
    """Accuracy in % with its interval, a column a length."""
    widths = list(dict.fromkeys(row["width"] for row in rows))
    table = Table("encoding", "scaling", "temperature")
    for width in widths:
        table.add_column(f"{width} tokens", justify="right", no_wrap=True)
    cells: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in rows:
        text = f"{100 * row['accuracy']:.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        cells.setdefault((row["encoding"], row["scaling"], row["temperature"]), {})[row["width"]] = text
    for names, texts in cells.items():
        table.add_row(*names, *(texts.get(width, "") for width in widths))
    return table


def main(
    encodings: tuple[str, ...] = ("none", "learned", "sinusoidal", "axial"),
    scalings: tuple[str, ...] = ("none", "pi", "ntk", "yarn"),
    temperatures: tuple[str, ...] = ("none",),
    seed: int = 0,
    threads: int = 1,
    task: SequenceTask = SequenceTask(),
) -> None:
    """Train one model an encoding and print its accuracy at each length."""
    torch.set_num_threads(threads)
    rows = []
    for encoding in encodings:
        started = time.process_time()
        rows += run(encoding, task, scalings=scalings, temperatures=temperatures, seed=seed)
        cli.console.print(f"{encoding}: {time.process_time() - started:.1f} s of CPU time")
    cli.console.print(show(rows))


if __name__ == "__main__":
    cli.run(main, "python -m train.sequence")
