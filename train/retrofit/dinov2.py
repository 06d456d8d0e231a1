"""A ViT-S/14 of DINOv2's architecture out of an ONNX file, as timm's `vit_small_patch14_dinov2`.

The exporter kept the names of vectors; matrices have numbers, so they are found by the nodes that multiply by them. Linear weights
lie transposed there.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import timm
import torch
from torch import Tensor

from train.retrofit.model import teacher
from train.retrofit.onnx_file import Node, read, with_output

NAME, BEFORE, LAYER = "vit_small_patch14_dinov2", "backbone.embeddings.", "backbone.encoder.layer."
LAST = "/backbone/layernorm/Add_1_output_0"
SAME = {  # of a block: timm's name -> that of the export
    "norm1.weight": "norm1.weight",
    "norm1.bias": "norm1.bias",
    "norm2.weight": "norm2.weight",
    "norm2.bias": "norm2.bias",
    "ls1.gamma": "layer_scale1.lambda1",
    "ls2.gamma": "layer_scale2.lambda1",
    "attn.proj.bias": "attention.output.dense.bias",
    "mlp.fc1.bias": "mlp.fc1.bias",
    "mlp.fc2.bias": "mlp.fc2.bias",
}
MATRICES = {"attn.proj": "attention/output/dense", "mlp.fc1": "mlp/fc1", "mlp.fc2": "mlp/fc2"}
QKV = "query", "key", "value"


def convert(data: bytes) -> dict[str, Tensor]:
    """timm's weights of an ONNX file's bytes."""
    weights, nodes = read(data)
    by_name = {node.name: node for node in nodes}
    depth = 1 + max(int(name.removeprefix(LAYER).split(".")[0]) for name in weights if name.startswith(LAYER))
    embed = BEFORE + "patch_embeddings.projection."
    found = {
        "cls_token": weights[BEFORE + "cls_token"],
        "pos_embed": _table(weights, by_name),
        "patch_embed.proj.weight": weights[embed + "weight"],
        "patch_embed.proj.bias": weights[embed + "bias"],
        "norm.weight": weights["backbone.layernorm.weight"],
        "norm.bias": weights["backbone.layernorm.bias"],
    }
    for layer in range(depth):
        found |= {f"blocks.{layer}.{name}": tensor for name, tensor in _block(weights, by_name, layer).items()}
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _table(weights: dict[str, Tensor], nodes: dict[str, Node]) -> Tensor:
    """`[1, 1 + N, C]`: the class token's entry, then the grid's."""
    prefix = nodes["/backbone/embeddings/Concat_6"].inputs[0]
    grid = nodes["/backbone/embeddings/Reshape_1"].inputs[0]
    return torch.cat((weights[prefix], weights[grid]), dim=1)


def _block(weights: dict[str, Tensor], nodes: dict[str, Node], layer: int) -> dict[str, Tensor]:
    here, path = f"{LAYER}{layer}.", f"/backbone/encoder/layer.{layer}/"

    def matrix(name: str) -> Tensor:
        return weights[nodes[f"{path}{name}/MatMul"].inputs[1]].T

    found = {ours: weights[here + theirs] for ours, theirs in SAME.items()}
    found |= {f"{ours}.weight": matrix(theirs) for ours, theirs in MATRICES.items()}
    found["attn.qkv.weight"] = torch.cat([matrix(f"attention/attention/{name}") for name in QKV])
    found["attn.qkv.bias"] = torch.cat([weights[f"{here}attention.attention.{name}.bias"] for name in QKV])
    return found


@torch.inference_mode()
def difference(data: bytes, weights: dict[str, Tensor], size: int = 224, seed: int = 0) -> float | None:
    """The largest difference of last features to ONNX Runtime on noise, over the largest of them; None without it."""
    if not find_spec("onnxruntime"):
        return None
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(with_output(data, LAST), options, providers=["CPUExecutionProvider"])
    images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(seed))
    theirs = torch.from_numpy(session.run([LAST], {"input_image": images.numpy()})[0])
    model = timm.create_model(NAME)
    model.load_state_dict(weights)
    ours = teacher(model, antialias=False).forward_features(images)  # type: ignore[operator]
    return float((ours - theirs).abs().max() / theirs.abs().max())
