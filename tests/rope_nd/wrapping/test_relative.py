"""Relative tables that come with a model: at any grid they are what timm makes of them when it is told the size beforehand."""

import copy

import pytest
import torch
from timm.layers.pos_embed_rel import RelPosBias, RelPosBiasTf, RelPosMlp, resize_rel_pos_bias_table
from timm.models.beit import Attention as BeitAttention
from timm.models.vision_transformer_sam import VisionTransformerSAM
from torch import nn

from rope_nd import wrap
from rope_nd.wrapping.relative import module_bias, offset_weights, ratio, table_bias
from tests.rope_nd.wrapping.zoo import build, classed, images

pytestmark = [  # of timm's interpolation
    pytest.mark.filterwarnings("ignore:Using a non-tuple sequence"),
    pytest.mark.filterwarnings("ignore:torch.searchsorted"),
]
tables = ["beit", "beit, shared and table", "relpos, table", "relpos, shared table, res-post"]
mlps = ["relpos, mlp", "relpos, swin mlp"]
grids = [(4, 4), (8, 8), (2, 3), (7, 5), (4, 9), (3, 4), (12, 2)]
windows = [
    ((4, 4), (7, 7)),
    ((4, 4), (3, 3)),
    ((3, 5), (6, 10)),
    ((5, 3), (3, 5)),
    ((6, 2), (2, 6)),
    ((14, 14), (32, 20)),
    ((7, 7), (4, 9)),
]


def close(a: torch.Tensor, b: torch.Tensor, atol: float, rtol: float = 0.0) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=rtol)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def spread(module: nn.Module, seed: int = 0) -> nn.Module:
    """With parameters of size one, in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return module.eval()


# ---- tables


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("trained, grid", windows)
@torch.no_grad()
def test_a_table_at_another_size_is_timms_resized_table(trained, grid, prefix):
    module = spread(RelPosBias(trained, num_heads=3, prefix_tokens=prefix))
    ours, at_home = module_bias(module, grid), module_bias(module, trained)
    close(at_home, module.get_bias()[0], atol=1e-6)
    module.set_window_size(grid)
    assert ours.shape == (3, prefix + grid[0] * grid[1], prefix + grid[0] * grid[1])
    close(ours, module.get_bias()[0], atol=1e-4)


@pytest.mark.parametrize("trained, grid", windows)
@torch.no_grad()
def test_a_table_of_beits_is_timms_resized_table(trained, grid):
    layer = spread(BeitAttention(12, num_heads=2, window_size=trained))
    table = layer.relative_position_bias_table
    ours, at_home = table_bias(table, trained, grid), table_bias(table, trained, trained)
    close(at_home, layer._get_rel_pos_bias()[0], atol=1e-6)
    layer.set_window_size(grid)
    close(ours, layer._get_rel_pos_bias()[0], atol=1e-4)


@pytest.mark.parametrize("grid", [(1, 1), (1, 6), (5, 1), (1, 9), (4, 1)])
@pytest.mark.parametrize("trained", [(4, 4), (3, 6)])
@torch.no_grad()
def test_axes_of_one_token_are_taken(trained, grid):
    module = spread(RelPosBias(trained, num_heads=2, prefix_tokens=1))
    ours = module_bias(module, grid)
    module.set_window_size(grid)
    close(ours, module.get_bias()[0], atol=1e-4)


@torch.no_grad()
def test_a_table_of_one_row_is_stretched_along_its_columns_and_repeated_along_the_rows():
    module = spread(RelPosBias((1, 4), num_heads=2))
    long = spread(RelPosBias((4, 4), num_heads=2))
    long.relative_position_bias_table.copy_(module.relative_position_bias_table.repeat(7, 1))  # the same for every row offset
    close(module_bias(module, (1, 4)), module.get_bias()[0], atol=1e-6)
    close(module_bias(module, (3, 6)), module_bias(long, (3, 6)), atol=1e-5)
    single = spread(RelPosBias((1, 1), num_heads=2))
    assert module_bias(single, (2, 3)).eq(single.relative_position_bias_table.T[..., None]).all()


@torch.no_grad()
def test_near_offsets_keep_their_entries_and_the_farthest_reach_the_ends():
    """The progression 1, 1 + q, 1 + q + q^2, .. of 4 trained offsets, with the sum at the new far end."""
    far = torch.tensor(9.0, dtype=torch.float64)
    q = ratio(3, far)
    close(1 + q + q**2, torch.minimum(far, torch.tensor(1 + 1.5 + 2.25, dtype=torch.float64)), atol=1e-4)
    q = ratio(5, far)
    close(sum(q**i for i in range(5)), far, atol=1e-4)
    weights = offset_weights(6, 10, torch.device("cpu"))
    close(weights.sum(1), torch.ones(19, dtype=torch.float64), atol=1e-12)
    close(weights[8:11, 4:7], torch.eye(3, dtype=torch.float64), atol=1e-12)  # offsets -1, 0, 1 are as trained
    close(weights[[0, -1]][:, [0, -1]], torch.eye(2, dtype=torch.float64), atol=1e-4)
    close(weights, weights.flip(0, 1), atol=1e-12)


def test_what_a_table_is_resized_to_is_differentiable_and_linear_in_it():
    table = noise(7 * 9 + 3, 2).requires_grad_()
    weight = noise(2, 31, 31, seed=1)
    score = (table_bias(table, (4, 5), (6, 5)) * weight).sum()
    score.backward()
    close((table.grad * table.detach()).sum(), score.detach(), atol=1e-3)  # homogeneous of degree one
    assert table.grad.ne(0).all()
    table.grad = None
    table_bias(table, (4, 5), (6, 5)).sum().backward()
    close(table.grad.sum(), torch.tensor(2.0 * 31 * 31), atol=1e-2)  # each pair reads weights that sum to one


def test_gradients_of_a_resized_table_are_those_of_the_interpolation_that_timm_does():
    table, weight = noise(7 * 7, 1).double(), noise(1, 36, 36, seed=1)
    leaf = table.float().requires_grad_()
    (table_bias(leaf, (4, 4), (6, 6)) * weight).sum().backward()
    index = spread(RelPosBias((6, 6), num_heads=1)).relative_position_index

    def score(entries: torch.Tensor) -> torch.Tensor:
        resized = resize_rel_pos_bias_table(entries.float(), (6, 6), (121, 1), (4, 4))
        return (resized[index].view(36, 36) * weight[0]).double().sum()

    for entry in (0, 10, 24, 25, 48):
        step = torch.zeros_like(table)
        step[entry] = 1.0
        close(leaf.grad[entry, 0].double(), (score(table + step) - score(table - step)) / 2, atol=2e-2)


# ---- log-coordinates


@pytest.mark.parametrize("pretrained", [(0, 0), (4, 4), (3, 6)])
@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("mode", ["cr", "swin"])
@torch.no_grad()
def test_an_mlp_at_another_size_is_timms(mode, prefix, pretrained):
    module = RelPosMlp((4, 4), num_heads=3, hidden_dim=16, prefix_tokens=prefix, mode=mode, pretrained_window_size=pretrained)
    spread(module)
    close(module_bias(module, (4, 4)), module.get_bias()[0], atol=1e-6, rtol=1e-6)
    for grid in ((8, 8), (2, 3), (7, 4), (3, 9)):
        ours = module_bias(module, grid)
        other = copy.deepcopy(module)
        other.set_window_size(grid)
        assert ours.shape[-1] == prefix + grid[0] * grid[1]
        close(ours, other.get_bias()[0], atol=1e-5, rtol=1e-6)


@torch.no_grad()
def test_an_mlp_takes_axes_of_one_token():
    cr = spread(RelPosMlp((4, 4), num_heads=3, hidden_dim=16))
    ours = module_bias(cr, (1, 6))
    cr.set_window_size((1, 6))
    close(ours, cr.get_bias()[0], atol=1e-5)
    swin = spread(RelPosMlp((4, 4), num_heads=3, hidden_dim=16, mode="swin"))  # timm divides by zero here
    bias = module_bias(swin, (1, 6))
    assert bias.isfinite().all() and bias.shape == (3, 6, 6)
    square = module_bias(swin, (6, 6)).unflatten(1, (6, 6)).unflatten(-1, (6, 6))
    close(bias, square[:, 2, :, 2], atol=1e-5)  # pairs in one row


def test_an_mlp_drops_out_in_training_as_timms_does():
    module = spread(RelPosMlp((4, 4), num_heads=3, hidden_dim=16)).train()
    torch.manual_seed(1)
    ours = module_bias(module, (6, 3))
    module.set_window_size((6, 3))
    torch.manual_seed(1)
    close(ours, module.get_bias()[0], atol=1e-5)
    torch.manual_seed(2)
    assert (module_bias(module, (6, 3)) - ours).abs().max() > 1e-3


def test_a_bias_that_is_not_known_is_named():
    with pytest.raises(ValueError, match="RelPosBiasTf"):
        module_bias(RelPosBiasTf((4, 4), 2), (4, 4))


# ---- models


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("grid", grids)
@pytest.mark.parametrize("kind", [*tables, *mlps])
@torch.no_grad()
def test_a_wrapped_model_at_any_size_is_timms_told_of_that_size(kind, grid, fused):
    plain = build(kind)
    for block in plain.blocks:
        block.attn.fused_attn = fused
    ours, still = wrap(copy.deepcopy(plain), "native"), wrap(copy.deepcopy(plain), "axial", keep_pos_embed=True, strength=0.0)
    x = images(2, 3, 8 * grid[0], 8 * grid[1])
    if grid != (4, 4):
        plain.set_input_size(img_size=(8 * grid[0], 8 * grid[1]))
    expected = plain(x)
    for model in (ours, still):
        close(model(x), expected, atol=1e-6 if grid == (4, 4) and kind in tables else 1e-5 if kind in mlps else 1e-4)


@pytest.mark.parametrize("size", [(8, 40), (32, 8), (8, 8)])
@pytest.mark.parametrize("kind", tables)
@torch.no_grad()
def test_a_wrapped_model_takes_images_of_one_row_or_column_of_patches(kind, size):
    plain, x = build(kind), images(2, 3, *size)
    ours = wrap(copy.deepcopy(plain), "native")
    plain.set_input_size(img_size=size)
    close(ours(x), plain(x), atol=1e-4)


@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
@pytest.mark.parametrize("kind", [*tables, *mlps])
def test_gradients_reach_the_tables_and_are_timms_at_the_trained_size(kind, size):
    plain = build(kind)
    ours, x = wrap(copy.deepcopy(plain), "mixed", keep_pos_embed="bias"), images(2, 3, *size)
    names = [n for n, _ in plain.named_parameters() if "relative_position_bias_table" in n or "rel_pos.mlp" in n]
    ours(x).square().sum().backward()
    found = dict(ours.named_parameters())
    assert names and all(found[n].requires_grad and found[n].grad.isfinite().all() and found[n].grad.ne(0).any() for n in names)
    if size == (32, 32):
        native = wrap(copy.deepcopy(plain), "native")
        for model in (native, plain):
            model(x).square().sum().backward()
        for name, p in native.named_parameters():
            expected = dict(plain.named_parameters())[name].grad
            assert (p.grad is None) == (expected is None)
            if expected is not None:
                close(p.grad, expected, atol=1e-5 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("kind", [*tables, *mlps])
def test_tables_that_are_dropped_are_frozen_and_unread(kind):
    model, x = wrap(build(kind), "axial"), images()
    names = [n for n, _ in model.named_parameters() if "relative_position_bias_table" in n or "rel_pos.mlp" in n]
    expected = model(x)
    expected.sum().backward()
    found = dict(model.named_parameters())
    assert names and not any(found[n].requires_grad or found[n].grad is not None for n in names)
    with torch.no_grad():
        for n in names:
            found[n].normal_()
        assert torch.equal(model(x), expected)
        assert (wrap(build(kind), "axial", keep_pos_embed="bias")(x) - expected).abs().max() > 1e-5


# ---- SAM


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("size", [(32, 32), (64, 64), (48, 80), (16, 24), (8, 40)])
@torch.no_grad()
def test_decomposed_tables_of_sam_at_any_size_are_timms(size, fused):
    plain, x = build("sam"), images(2, 3, *size)
    for block in plain.blocks:
        block.attn.fused_attn = fused
    ours, still = wrap(copy.deepcopy(plain), "native"), wrap(copy.deepcopy(plain), "axial", keep_pos_embed=True, strength=0.0)
    expected = plain(x)
    for model in (ours, still):
        close(model(x), expected, atol=1e-5)
        close(model.forward_features(x), plain.forward_features(x), atol=1e-5, rtol=1e-5)
    assert (wrap(copy.deepcopy(plain), "none", keep_pos_embed="absolute")(x) - expected).abs().max() > 1e-4


@pytest.mark.parametrize("kept", [False, True])
def test_tables_of_sams_global_blocks_can_be_dropped_and_those_of_its_windows_always_stay(kept):
    options = {**classed, "depth": 3, "global_attn_indexes": (1,), "window_size": 2, "neck_chans": 16, "use_rel_pos": True}
    torch.manual_seed(0)
    model = VisionTransformerSAM(**options).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    wrap(model, "alibi", keep_pos_embed="bias" if kept else False)
    x = images(2, 3, 48, 64)
    model(x).square().sum().backward()
    with torch.no_grad():
        expected = model(x)
    for number, block in enumerate(model.blocks):
        for table in (block.attn.rel_pos_h, block.attn.rel_pos_w):
            read = kept or number != 1
            assert table.requires_grad is read and (table.grad is not None and table.grad.ne(0).any().item()) is read
            with torch.no_grad():
                before = table.clone()
                table.add_(torch.randn_like(table))
                assert torch.equal(model(x), expected) is not read
                table.copy_(before)
