"""Names: each builds for one to three axes, learned families one a layer, and what is unknown is refused."""

import pytest
import torch
from torch import nn

from rope_nd import RoPE, grid, list_encodings
from rope_nd.absolute import Absolute, Sinusoidal
from rope_nd.bias import Bias
from rope_nd.freqs import FAMILIES
from rope_nd.registry import ABSOLUTE, BIASES, VARIANTS, Host, make

trained = {1: (9,), 2: (4, 5), 3: (2, 3, 4)}


def host(axes: int = 2, **changes) -> Host:
    return Host(
        **{"dim": 48, "heads": 3, "head_dim": 16, "layers": 4, "trained_extent": trained[axes], "prefix_tokens": 2, **changes}
    )


def test_the_list_holds_every_name_once_and_none():
    names = list_encodings()
    assert len(names) == len(set(names)) and {"none", *ABSOLUTE, *BIASES, *FAMILIES, *VARIANTS} == set(names)
    assert names is not list_encodings()  # a caller may change its own


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", list_encodings())
def test_every_name_builds_for_any_number_of_axes_and_reads_a_grid_larger_than_the_trained_one(name, axes):
    encoding = make(name, axes, host(axes))
    extent = tuple(n + 3 for n in trained[axes])
    points = grid(*extent)
    if name == "none":
        assert encoding is None
    elif name in ABSOLUTE:
        assert isinstance(encoding, Absolute) and encoding(points, extent).shape == (len(points), 48)
    elif name in BIASES:
        for bias in encoding if isinstance(encoding, nn.ModuleList) else [encoding]:
            assert isinstance(bias, Bias) and bias(points, points, extent).shape == (3, len(points), len(points))
    else:
        ropes = encoding if isinstance(encoding, nn.ModuleList) else [encoding]
        for rope in ropes:
            assert isinstance(rope, RoPE) and (rope.head_dim, rope.axes, rope.heads) == (16, axes, 3)
            assert rope.trained_extent == trained[axes] and rope.prefix_tokens == 2
            x = torch.randn(2, 3, 2 + len(points), 16)
            turned, other = rope(points, extent).qk(x, x)
            assert turned.shape == other.shape == (*x.shape[:3], {"pope": 32, "pape": (24, 32, 32)[axes - 1]}.get(name, 16))
            if name not in VARIANTS:
                assert torch.equal(turned[:, :, :2], x[:, :, :2]) and not torch.allclose(turned, x)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_name_gives_the_frequencies_of_its_family(name):
    encoding = make(name, 2, host(), learned=False)
    assert isinstance(encoding, RoPE) and torch.equal(encoding.freqs, RoPE(16, 2, name, heads=3, learned=False).freqs)


@pytest.mark.parametrize("options", [{}, {"seed": 7}])
def test_learned_families_are_one_a_layer_each_with_its_own_seed(options):
    encoding, seed = make("mixed", 2, host(), **options), options.get("seed", 0)
    assert isinstance(encoding, nn.ModuleList) and len(encoding) == 4
    for i, rope in enumerate(encoding):
        assert rope.learned and torch.equal(rope.freqs, RoPE(16, 2, "mixed", heads=3, seed=seed + i).freqs)
        assert not any(torch.equal(rope.freqs, other.freqs) for other in encoding[:i])
    again = make("mixed", 2, host(), **options)
    assert all(torch.equal(a.freqs, b.freqs) for a, b in zip(encoding, again))
    assert set(encoding.state_dict()) == {f"{i}.freqs" for i in range(4)}


@pytest.mark.parametrize("name", FAMILIES)
def test_any_family_may_be_learned_or_fixed(name):
    learned, fixed = make(name, 2, host(), learned=True), make(name, 2, host(), learned=False)
    assert isinstance(learned, nn.ModuleList) and len(learned) == 4 and all(rope.learned for rope in learned)
    assert len({id(rope.freqs) for rope in learned}) == 4
    assert isinstance(fixed, RoPE) and not list(fixed.parameters())


def test_options_reach_the_encoding():
    rope = make("axial", 2, host(), theta=10.0, scaling="yarn", temperature="log", layout="half", strength=0.5)
    assert (rope.scaling, rope.temperature, rope.layout, rope.strength) == ("yarn", "log", "half", (0.5, 0.5))
    assert torch.equal(rope.freqs, RoPE(16, 2, theta=10.0).freqs)
    table = make("learned", 2, host(), mode="linear", scaling="none", std=3.0)
    assert table.mode == "linear" and not table.stretch and table.table.std() > 1
    assert make("learned", 2, host(), scaling=None).stretch  # nothing asked for: what everybody does
    assert make("learned", 2, host()).table.shape == (4, 5, 48)
    code = make("sinusoidal", 2, host(), theta=50.0, scaling="pi")
    assert code.table.scaling == "pi" and torch.equal(code.at(4, 5), Sinusoidal(48, 2, theta=50.0).at(4, 5))
    assert make("none", 2, host(), scaling=None) is None is make("none", 2, host(), scaling="none")


@pytest.mark.parametrize(
    "name, axes, options, says",
    [
        ("axail", 2, {}, "unknown encoding 'axail': choose one of 'none', 'integer', 'binary'"),
        ("axail", 2, {}, "did you mean 'axial'"),
        ("leaned", 2, {}, "did you mean 'learned'"),
        (None, 2, {}, "unknown encoding None"),
        ("none", 2, {"theta": 3.0}, "encoding 'none' has no options, got ['theta']"),
        ("none", 2, {"scaling": "pi"}, "no positions to scale"),
        ("learned", 2, {"scaling": "ntk"}, "unknown scaling for a learned table 'ntk'"),
        ("learned", 3, {}, "3 token counts"),
        ("axial", 3, {}, "has 2 entries for axes=3"),
        ("axial", 2, {"thta": 3.0}, "no option 'thta'"),
        ("sinusoidal", 2, {"thta": 3.0}, "no option 'thta'"),
        ("axial", 2, {"scaling": "yarm"}, "did you mean 'yarn'"),
    ],
)
def test_what_is_unknown_is_refused_by_name(name, axes, options, says):
    with pytest.raises(ValueError) as caught:
        make(name, axes, host(2), **options)
    assert says in str(caught.value)


def test_heads_too_narrow_are_refused_with_the_width_that_works():
    with pytest.raises(ValueError, match="head_dim=2 has 1 pairs for axes=2"):
        make("axial", 2, host(head_dim=2))
