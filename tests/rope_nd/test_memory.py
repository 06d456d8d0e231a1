"""What training keeps for backward: tables, and outputs that attention keeps anyway. Inputs are never kept."""

import pytest
import torch

from rope_nd import RoPE, Rotation

B, N, H, D = 2, 13, 3, 16


def kept(run) -> dict[int, int]:
    """Storages that backward keeps while `run` runs: where each begins, and its bytes."""
    found = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run()
    return found


def storages(*tensors: torch.Tensor) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_fixed_tables_are_all_that_is_kept_and_layers_share_them(dtype, layout):
    rotation = RoPE(D, 2, layout=layout, prefix_tokens=1).at(3, 4)
    q, k = torch.randn(2, B, H, N, D).to(dtype).requires_grad_().unbind(0)
    outputs = []
    found = kept(lambda: [outputs.extend(rotation.qk(q, k)) for _ in range(4)])
    assert found.keys() == storages(rotation.cos, rotation.sin)
    assert sum(found.values()) == 2 * 4 * rotation.cos.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_learned_frequencies_keep_the_turned_output_and_not_the_input(dtype):
    rotation = RoPE(D, 2, "mixed", heads=H, prefix_tokens=1).at(3, 4)
    q, k = torch.randn(2, B, H, N, D).to(dtype).requires_grad_().unbind(0)
    outputs = []
    found = kept(lambda: outputs.extend(rotation.qk(q, k)))
    assert found.keys() == storages(rotation.cos, rotation.sin, *outputs)


def test_learned_frequencies_cost_attention_nothing_but_the_tables():
    rotation = RoPE(D, 2, "mixed", heads=H, prefix_tokens=1).at(3, 4)
    qkv = torch.randn(3, B, H, N, D, requires_grad=True)
    attention = torch.nn.functional.scaled_dot_product_attention
    outputs = []
    plain = kept(lambda: outputs.append(attention(*(qkv * 1).unbind(0))))

    def turned():
        q, k, v = (qkv * 1).unbind(0)
        outputs.append(attention(*rotation.qk(q, k), v))

    size = qkv[0].numel() * 4
    more = sum(kept(turned).values()) - sum(plain.values())  # q and k stand by themselves now, beside the projection
    assert more == 2 * rotation.cos.numel() * 4 + 2 * size


def test_the_packed_form_keeps_tables_and_the_projection_that_attention_keeps():
    for freqs in ("axial", "mixed"):
        rotation = RoPE(D, 2, freqs, heads=H, prefix_tokens=1).at(3, 4)
        projection = torch.randn(B, N, 3 * H * D, requires_grad=True)
        turned = []

        def run(rotation=rotation, projection=projection, turned=turned):
            turned.extend(rotation.packed_((projection * 1).view(B, N, 3, H, D)))

        found = kept(run)
        tables = storages(rotation.cos, rotation.sin)
        assert found.keys() - storages(*turned) == tables


def test_tables_that_are_not_of_angles_keep_the_input_and_exact_gradients():
    cos, sin = torch.randn(2, N, D // 2, dtype=torch.float64).requires_grad_().unbind(0)
    x = torch.randn(B, H, N, D, dtype=torch.float64, requires_grad=True)
    found = kept(lambda: Rotation(cos, sin)(x))
    assert found.keys() == storages(cos, sin, x)
    assert torch.autograd.gradcheck(
        lambda x, c, s: Rotation(c, s)(x), (x, cos.detach().requires_grad_(), sin.detach().requires_grad_())
    )


def test_inference_keeps_nothing_and_turns_a_projection_in_its_own_memory():
    rotation, qkv = RoPE(D, 2, prefix_tokens=1).at(3, 4), torch.randn(B, N, 3, H, D)
    place, version = qkv.data_ptr(), qkv._version
    with torch.no_grad():
        assert not kept(lambda: rotation.packed_(qkv))
    assert qkv.data_ptr() == place and qkv._version > version
