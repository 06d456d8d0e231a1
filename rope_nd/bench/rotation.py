"""Turning queries and keys beside copying them: q and k into a buffer that is there already, in the same rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..positions import augment
from ..rope import RoPE
from ..rotation import Rotation
from . import memory, rivals
from .row import MB, Row, against, named
from .timing import Subject, interleaved

Tensors = tuple[Tensor, ...]
Shape = tuple[int, int, int, int]
FORMS, DIRECTIONS, LAYOUTS = ("packed", "separate"), ("forward", "backward"), ("interleaved", "half")
DTYPES = (torch.float32, torch.bfloat16)
SHAPES: dict[str, Shape] = {"cpu": (8, 785, 6, 64), "cuda": (128, 785, 12, 64)}


@dataclass(frozen=True)
class Case:
    """What all subjects of one table share; the inputs are q and k `[B, H, N, D]`, or their projection `[B, N, 3, H, D]`."""

    shape: Shape
    dtype: torch.dtype
    layout: str
    form: str
    direction: str
    device: torch.device
    prefix: int = 1

    def inputs(self) -> Tensors:
        """Random inputs, the same in every case."""
        b, n, h, d = self.shape
        sizes = [(b, n, 3, h, d)] if self.form == "packed" else [(b, h, n, d)] * 2
        source = torch.Generator(self.device).manual_seed(0)
        return tuple(torch.randn(size, generator=source, device=self.device).to(self.dtype) for size in sizes)


@dataclass(frozen=True)
class Entrant:
    """Who takes part: `turn` takes the case's inputs and gives what was turned; `learned`: the tensors that get gradients."""

    name: str
    turn: Callable[[Tensors], Tensors]
    learned: Tensors = ()
    per_head: bool = False
    kernel: str | None = None
    tables: int = 0  # bytes read


def extent_of(tokens: int) -> tuple[int, int]:
    """The grid of that many tokens that is nearest to a square."""
    height = next(h for h in range(math.isqrt(tokens), 0, -1) if tokens % h == 0)
    return height, tokens // height


def pair(inputs: Tensors) -> tuple[Tensor, Tensor]:
    """q and k `[B, H, N, D]` of separate inputs, or as views of the packed one."""
    q, k = inputs if len(inputs) == 2 else inputs[0].permute(2, 0, 3, 1, 4)[:2].unbind(0)
    return q, k


def ours(rotation: Callable[[], Rotation], form: str, inputs: Tensors) -> Tensors:
    """By this library: in place where inputs are packed."""
    return rotation().packed_(*inputs) if form == "packed" else rotation().qk(*inputs)


def theirs(turn: rivals.Turn, inputs: Tensors) -> Tensors:
    """By another, out of place."""
    return turn(*pair(inputs))


def entrants(case: Case, alone: bool = False) -> list[Entrant]:
    """Who turns in this case: this library with tables for all; unless `alone`, for each sample, for each head; and the others."""
    batch, tokens, heads, width = case.shape
    extent = extent_of(tokens - case.prefix)
    options: dict[str, Any] = {"layout": case.layout, "prefix_tokens": case.prefix}
    with torch.no_grad():
        rope = RoPE(width, 2, **options).to(case.device)
        learned = RoPE(width, 2, "mixed", heads=heads, **options).to(case.device)
        fixed, per_head = rope.at(*extent), learned.at(*extent)
        per_sample = rope(augment(rope.positions(*extent), batch=batch, jitter=1.2), extent)
    own = per_head.cos.detach().requires_grad_(), per_head.sin.detach().requires_grad_()
    per_head = replace(per_head, cos=own[0], sin=own[1])

    def entrant(name: str, rotation: Rotation, **more: Any) -> Entrant:
        kernel = path(rotation, case)
        return Entrant(name, partial(ours, lambda: rotation, case.form), kernel=kernel, tables=size(rotation), **more)

    found = [
        entrant("rope_nd", fixed),
        entrant("rope_nd, tables per sample", per_sample),
        entrant("rope_nd", per_head, learned=own, per_head=True),
    ]
    with_tables = partial(ours, lambda: learned.at(*extent), case.form)
    found.append(replace(found[-1], name="rope_nd, tables made", turn=with_tables, learned=tuple(learned.parameters())))
    if alone:
        return found[:1]
    for name, rival in rivals.installed()[0].items():
        if case.layout in rival.layouts:
            for rotation, tables in ((fixed, ()), (per_head, own))[: 1 + rival.per_head]:
                turn = rival.make(rotation.cos, rotation.sin, case.layout, case.prefix, case.dtype)
                found.append(Entrant(name, partial(theirs, turn), tables, bool(tables), tables=size(rotation)))
    return found


def size(rotation: Rotation) -> int:
    """Bytes of its tables."""
    return rotation.cos.nbytes + rotation.sin.nbytes


def path(rotation: Rotation, case: Case) -> str:
    """Which kernel turns these inputs here."""
    x = pair(case.inputs())[0]
    out = x if (case.form, case.direction) == ("packed", "forward") else torch.empty_like(x)
    cos, sin = (t.detach()[(None,) * (4 - t.ndim)] for t in (rotation.cos, rotation.sin))  # [B|1, H|1, N, P]
    backend = kernels.choose(x, out, cos, sin, case.layout)
    return "eager" if backend is None else backend.__name__.rsplit(".", 1)[-1]


def subject(case: Case, entrant: Entrant, inputs: Tensors) -> Subject:
    """One call of `turn`, or of its gradient; forward is what inference does, and training where frequencies are learned."""
    if case.direction == "forward":

        def forward(given: object) -> object:
            with torch.set_grad_enabled(bool(entrant.learned)):
                return entrant.turn(tuple(x.detach() for x in inputs))

        return Subject(entrant.name, forward)
    leaves = [x.detach().requires_grad_() for x in inputs]
    outputs = entrant.turn(tuple(x.clone() for x in leaves))  # copies: a leaf cannot be changed in place
    slopes = [torch.randn_like(y) for y in outputs]
    wanted = (*leaves, *entrant.learned)
    return Subject(entrant.name, lambda given: torch.autograd.grad(outputs, wanted, slopes, retain_graph=True))


def copies(case: Case) -> list[Subject]:
    """q and k copied into a buffer that is there, and cloned."""
    sources = replace(case, form="separate").inputs()
    buffers = [torch.zeros_like(x) for x in sources]
    return [
        Subject("copy_", lambda given: [buffer.copy_(x) for buffer, x in zip(buffers, sources)]),
        Subject("clone", lambda given: [x.clone() for x in sources]),
    ]


MARKS = {  # kind of device, dtype -> packed, separate, half layout, learned a head
    ("cpu", torch.float32): (1.25, 1.6, 2.0, 3.0),
    ("cpu", torch.bfloat16): (3.2, 4.0, 4.0, 6.0),
    ("cuda", torch.bfloat16): (1.1, 1.2, 1.2, 1.5),
}


def mark(case: Case, per_head: bool) -> float | None:
    """The ratio aimed at; a gradient may not be written into, so backward is held to what separate inputs are."""
    packed, separate, half, learned = MARKS.get((case.device.type, case.dtype), (None,) * 4)
    if per_head:
        return learned
    if case.layout == "half":
        return half
    return packed if (case.form, case.direction) == ("packed", "forward") else separate


def measure(case: Case, rounds: int, alone: bool = False) -> list[Row]:
    """The rows of one case."""
    taking, inputs = entrants(case, alone), case.inputs()
    subjects = [*copies(case), *(subject(case, one, inputs) for one in taking)]
    times = interleaved(subjects, rounds=rounds, device=case.device)
    device, dtype, threads = case.device.type, named(case.dtype), torch.get_num_threads()
    moved = 4 * math.prod(case.shape) * case.dtype.itemsize  # q and k, read and written
    found = []
    for i, one in enumerate([None, None, *taking]):
        once = partial(lambda s: s.run(s.prepare()), subjects[i])
        found.append(
            Row(
                "rotation", subjects[i].name, device, dtype, case.layout, case.form, case.direction, case.shape,
                one is not None and one.per_head, **against(times[i], times[0]), against="copy_",  # type: ignore[arg-type]
                threads=threads, rounds=rounds, bytes=moved + (one.tables if one else 0),
                peak_mb=memory.peak(once, case.device) / MB, kernel=one.kernel if one else None,
                mark=mark(case, one.per_head) if one and one.name == "rope_nd" else None,
            )
        )  # fmt: skip
    return found


def run(
    shape: Shape, device: torch.device, *, rounds: int, dtypes: Sequence[torch.dtype] = DTYPES, layouts: Sequence[str] = LAYOUTS,
    prefix: int = 1, alone: bool = False,
) -> Iterator[list[Row]]:  # fmt: skip
    """The rows of every case, case by case."""
    for dtype, layout, form, direction in product(dtypes, layouts, FORMS, DIRECTIONS):
        yield measure(Case(shape, dtype, layout, form, direction, device, prefix), rounds, alone)
