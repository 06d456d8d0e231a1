"""Tables of whole grids: the same bits as token by token, made once, made anew when anything changes."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from timm.layers.pos_embed_sincos import RotaryEmbeddingMixed

from rope_nd import RoPE, grids, list_presets
from rope_nd.presets import PRESETS
from rope_nd.registry import ROTARY, Host, make
from rope_nd.wrapping.native import native


def alike(a, b) -> bool:
    return torch.equal(a.cos, b.cos) and torch.equal(a.sin, b.sin) and a.cos.shape == b.cos.shape


OPTIONS = {
    "axial": {},
    "interleaved": {"freqs": "interleaved"},
    "unrotated pairs": {"leftover": "unrotated", "rotary_dim": 20},
    "centred": {"coordinates": {"normalize": "centred"}},
    "pi": {"scaling": "pi", "trained_extent": (2, 3, 4)},
    "yarn a rule an axis": {"scaling": ["yarn", None, "ntk"], "trained_extent": (2, 3, 4), "temperature": "log"},
    "strength": {"strength": (0.5, 0.0, 1.0)},
    "free": {"freqs": "golden", "heads": 2},
    "a function that looks elsewhere": {
        "scaling": lambda freqs, scale, length: freqs.roll(1, -1) + freqs,
        "trained_extent": (2, 3, 4),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_grid_has_the_same_bits_as_its_tokens_one_by_one(name):
    rope = RoPE(24, 3, **{"freqs": "axial", **OPTIONS[name]})
    for extent in ((5, 3, 7), (1, 1, 1), (2, 9, 4)):
        assert alike(rope.at(*extent), rope(rope.positions(*extent), extent))


def test_trigonometry_goes_along_the_axes_and_not_over_the_tokens(monkeypatch):
    seen = []
    plain = grids.angles
    monkeypatch.setattr(grids, "angles", lambda points, freqs: seen.append(len(points)) or plain(points, freqs))
    RoPE(32, 2).at(40, 50)
    assert seen == [40, 50]


def test_the_last_grids_are_kept_and_the_oldest_goes():
    rope = RoPE(16, 2)
    first = rope.at(3, 4)
    assert rope.at(3, 4) is first and rope.at(4, 3) is not first and rope.at(3, 4) is first
    for n in range(5, 5 + grids.KEPT):
        rope.at(n, n)
    assert rope.at(3, 4) is not first


@pytest.mark.parametrize(
    "change",
    [
        lambda rope: rope.freqs.mul_(2),
        lambda rope: setattr(rope, "strength", (0.5, 0.5)),
        lambda rope: setattr(rope, "layout", "half"),
        lambda rope: setattr(rope, "prefix_tokens", 1),
        lambda rope: rope.coordinates.update(spacing=2),
        lambda rope: setattr(rope, "temperature", 1.5),
        lambda rope: rope.to(torch.float16),
    ],
)
def test_nothing_that_changes_a_table_leaves_an_old_one(change):
    rope = RoPE(16, 2)
    before = rope.at(3, 4)
    change(rope)
    after = rope.at(3, 4)
    fresh = rope(rope.positions(3, 4), (3, 4))
    assert after is not before and alike(after, fresh)
    assert (after.layout, after.prefix_tokens, after.temperature) == (fresh.layout, fresh.prefix_tokens, fresh.temperature)


def test_other_memory_under_the_same_frequencies_is_seen():
    rope = RoPE(16, 2)
    before = rope.at(3, 4)
    rope.freqs.data = rope.freqs.data * 2
    second = rope.at(3, 4)
    rope.freqs.data.mul_(2)  # which PyTorch counts as no change
    assert len({cos.sum().item() for cos in (before.cos, second.cos, rope.at(3, 4).cos)}) == 3


@pytest.mark.parametrize("each", [lambda rule: rule, lambda rule: [rule, "pi"]])
def test_a_rule_that_is_a_function_is_asked_every_time_and_may_learn(each):
    factor = torch.ones(1, dtype=torch.float64, requires_grad=True)
    rope = RoPE(16, 2, scaling=each(lambda freqs, scale, length: freqs * factor), trained_extent=(3, 4))
    before = rope.at(3, 4)
    before.cos.sum().backward()
    assert factor.grad.abs() > 0
    with torch.no_grad():
        factor.mul_(2)
    assert not torch.equal(rope.at(3, 4).cos, before.cos)


def test_threads_that_share_an_encoding_find_their_tables():
    rope = RoPE(16, 2)
    extents = [(n, m) for n in range(1, 7) for m in range(1, 7)] * 20
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda extent: rope.at(*extent), extents))
    assert all(alike(a, rope(rope.positions(*extent), extent)) for a, extent in zip(found, extents))


def test_a_table_first_made_in_inference_mode_serves_training():
    rope = RoPE(16, 2)
    with torch.inference_mode():
        kept = rope.at(3, 4)
    q = torch.randn(1, 1, 12, 16, requires_grad=True)
    assert rope.at(3, 4) is kept and not kept.cos.is_inference()
    rope.at(3, 4)(q).sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("name", [*ROTARY, *(p.name for p in list_presets())])
def test_whatever_moves_in_an_encoding_is_seen_by_its_next_grid(name):
    axes = 2 if name in ROTARY else PRESETS[name].axes or 2
    width = 96 if name == "lumina2" else 128  # some share the width in given proportions
    host = Host(dim=2 * width, heads=2, head_dim=width, layers=1, trained_extent=(6,) * axes, prefix_tokens=0)
    made = make(name, axes, host)
    rope = made[0] if isinstance(made, torch.nn.ModuleList) else made
    extent = tuple(range(3, 3 + axes))
    before, q = rope.at(*extent), torch.randn(1, 2, torch.Size(extent).numel(), width)
    with torch.no_grad():
        for values in (*rope.parameters(), *rope.buffers()):
            values.copy_(values * 1.5 if values.is_floating_point() else values)
    after, fresh = rope.at(*extent).qk(q, q)[0], rope(rope.positions(*extent), extent).qk(q, q)[0]
    assert torch.equal(after, fresh) and not torch.equal(after, before.qk(q, q)[0])


def test_timms_learned_frequencies_are_seen_in_a_native_encoding():
    source = RotaryEmbeddingMixed(dim=48, depth=1, num_heads=3, feat_shape=(3, 5))
    rope = native(source, 16, 1)[0]
    before = rope.at(3, 5).cos.detach()
    source.freqs.data.mul_(2)
    assert not torch.equal(rope.at(3, 5).cos, before) and rope.at(3, 5).cos.requires_grad


@pytest.mark.parametrize("freqs", ["axial", "mixed"])
def test_tables_of_learned_frequencies_are_kept_only_where_no_gradient_is_recorded(freqs):
    rope = RoPE(16, 2, freqs, heads=2, learned=True)
    assert rope.at(3, 4) is not rope.at(3, 4) and rope.at(3, 4).cos.requires_grad
    with torch.no_grad():
        kept = rope.at(3, 4)
        assert rope.at(3, 4) is kept and not kept.cos.requires_grad
    rope.at(3, 4).cos.square().sum().backward()
    torch.optim.SGD(rope.parameters(), 0.1).step()
    with torch.no_grad():
        assert rope.at(3, 4) is not kept and alike(rope.at(3, 4), rope(rope.positions(3, 4), (3, 4)))
    assert rope.at(3, 4).cos.requires_grad


def test_copies_and_pickles_carry_no_tables():
    rope = RoPE(16, 2)
    kept = rope.at(64, 64)
    assert len(pickle.dumps(rope)) < kept.cos.numel()
    assert copy.deepcopy(rope).at(64, 64) is not kept and alike(copy.deepcopy(rope).at(64, 64), kept)
