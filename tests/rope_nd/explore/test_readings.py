"""What the page says of a kernel: its decay, its returns, short wavelengths and turns, each found again from the vectors alone."""

import json
import math

import pytest
import torch

from rope_nd import RoPE, scaling
from rope_nd.registry import ROTARY
from tests.browser import answer

STATES = {
    "octaves": ("#encoding=wavelet_rotary&axes=1&width=16&trained=20&tested=60", lambda: built("wavelet_rotary", 16, 1)),
    "golden": ("#encoding=golden&axes=2&width=32&theta=7&trained=12x12&tested=25x31&head=0", lambda: golden(7.0)),
    "fast": ("#encoding=axial&axes=2&width=16&theta=4&trained=9x9&tested=20x14&leftover=counts&split=3x5", lambda: split(4.0)),
}
ASK = """
return LINKS.map(link => {
  const found = fromLink(link);
  if (found.notes.length) return found.notes;
  state = found.state;
  draw();
  const { now, found: back } = drawn, far = Math.max(...state.tested), unit = state.tested.map((_, b) => +(b === state.x));
  return { back, waves: wavelengths(now), list: drawn.list.map(t => [t.trained, t.tested, t.unseen]),
    line: [...line(now, state.head, unit, far, 0.75)],
    around: state.axes > 1 ? Object.values(around(now, state.head, state.y, state.x, 9, 1.5)).map(values => [...values]) : null };
});
"""


def built(name, width, axes):
    return ROTARY[name](width, axes).vectors()[0]


def golden(theta):
    return RoPE(32, 2, "golden", theta=theta, heads=6).freqs[0]


def split(theta):
    return RoPE(16, 2, theta=theta, split=(3, 5)).freqs[0]


@pytest.fixture(scope="module")
def told(visit):
    with visit() as page:
        return dict(zip(STATES, answer(page, ASK.replace("LINKS", json.dumps([link for link, _ in STATES.values()])))))


def extents(name):
    parts = dict(part.split("=") for part in STATES[name][0][1:].split("&"))
    return [tuple(map(int, parts[key].split("x"))) for key in ("trained", "tested")]


def kernel(w, offset):
    return float((w @ torch.tensor(offset, dtype=torch.float64)).cos().mean())


@pytest.mark.parametrize("name", STATES)
def test_decay_is_the_kernel_at_each_distance(told, name):
    w, seen = STATES[name][1](), told[name]
    for i in range(0, len(seen["line"]), 7):
        offset = [0.0] * (w.shape[1] - 1) + [0.75 * i]
        assert abs(seen["line"][i] - kernel(w, offset)) < 1e-9
    if seen["around"]:
        angles = [math.pi * k / 32 for k in range(32)]
        for i in range(9):
            ring = [kernel(w, [1.5 * i * math.sin(a), 1.5 * i * math.cos(a)]) for a in angles]
            expected = (min(ring), sum(ring) / 32, max(ring))
            assert all(abs(values[i] - value) < 1e-9 for values, value in zip(seen["around"], expected, strict=True))


@pytest.mark.parametrize("name", STATES)
def test_returns_are_the_highest_peaks_that_stand_out(told, name):
    w, (_, tested), seen = STATES[name][1](), extents(name), told[name]["back"]
    reach = [n - 1 for n in tested]
    grid = torch.cartesian_prod(*(torch.arange(-r, r + 1) for r in reach)).view(-1, len(reach)).double()
    values = (grid @ w.T).cos().mean(-1).view(*(2 * r + 1 for r in reach))
    sized = values[None] if len(reach) == 1 else values
    padded = torch.nn.functional.pad(sized, (1, 1, 0, 0) if len(reach) == 1 else (1, 1, 1, 1), value=math.inf)
    tall, wide = sized.shape
    around = [(i, j) for i in ([0] if len(reach) == 1 else (-1, 0, 1)) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    base = 0 if len(reach) == 1 else 1
    top = torch.stack([padded[base + i : base + i + tall, 1 + j : 1 + j + wide] for i, j in around]).amax(0)
    peaks = (sized >= top - 1e-12).flatten().nonzero().flatten().tolist()
    found = []
    for at in peaks:
        offset = grid[at]
        n = max(2, math.ceil(2 * float(offset.norm())))
        lowest = min(kernel(w, (offset * i / n).tolist()) for i in range(n))
        if offset.any() and float(values.flatten()[at]) - lowest >= 0.02:
            found.append(float(values.flatten()[at]))
    assert len(seen) == min(5, len(found) // 2) and seen, "a state without returns shows nothing"
    expected = sorted(found, reverse=True)[::2][: len(seen)]  # opposite offsets have the same kernel
    for one, value in zip(seen, expected, strict=True):
        assert abs(one["value"] - value) < 1e-9 and abs(kernel(w, one["offset"]) - value) < 1e-9


@pytest.mark.parametrize("name", STATES)
def test_wavelengths_and_turns_are_those_of_the_vectors(told, name):
    w, (trained, tested), seen = STATES[name][1](), extents(name), told[name]
    for a, wave in enumerate(seen["waves"]):
        if name != "golden":  # whose other heads count too
            assert abs(wave["shortest"] - 2 * math.pi / float(w[:, a].abs().max())) < 1e-9
            assert wave["short"] == int((w[:, a].abs() > math.pi + 1e-9).sum())
    lengths = [torch.tensor(extent, dtype=torch.float64) for extent in (trained, tested)]
    before, after = (scaling.turns(w[None], length)[0].tolist() for length in lengths)
    for (one, other, unseen), a, b in zip(seen["list"], before, after, strict=True):
        assert abs(one - a) < 1e-9 and abs(other - b) < 1e-9 and unseen == (a < 1 and b > a)


def test_pairs_under_two_tokens_are_counted_and_said(visit):
    with visit("#encoding=axial_pixel&axes=2&trained=14x14&tested=14x14") as page:
        counts = answer(page, "return wavelengths(drawn.now).map(wave => wave.short);")
        said = page.locator("#summary").inner_text()
    rope = RoPE.preset("axial_pixel", 64, axes=2)
    expected = [int((rope.freqs[0, :, a].abs() * 2 / 13 > math.pi).sum()) for a in range(2)]
    assert counts == expected and min(counts) > 0
    assert f"under two tokens: {counts[0]} pairs along h, {counts[1]} pairs along w, which aliases." in said
