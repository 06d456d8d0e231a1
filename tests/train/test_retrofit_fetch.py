"""What is fetched: weights out of ONNX files, emoji in folders."""

import struct

import pytest
import torch

from train.retrofit import emoji, onnx_file


def message(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def test_weights_are_read_from_the_bytes_of_an_onnx_file():
    values = (1.5, -2.0, 3.25, 0.0, 8.0, -0.5)
    tensor = bytes([1 << 3, 2, 1 << 3, 3, 2 << 3, 1]) + message(8, b"w") + message(9, struct.pack("<6f", *values))
    packed = message(1, bytes([2, 3])) + bytes([2 << 3, 1]) + message(8, b"p") + message(9, struct.pack("<6f", *values))
    whole_numbers = bytes([1 << 3, 1, 2 << 3, 7]) + message(8, b"n") + message(9, bytes(8))
    node = message(1, b"x") + message(1, b"w") + message(3, b"/fc/MatMul") + message(4, b"MatMul")
    graph = message(1, node) + b"".join(message(5, t) for t in (tensor, packed, whole_numbers))
    data = bytes([1 << 3, 0x88, 0x01]) + bytes([7 << 3 | 2, len(graph) & 127 | 128, len(graph) >> 7]) + graph
    found, nodes = onnx_file.read(data)
    assert set(found) == {"w", "p"}
    assert torch.equal(found["w"], torch.tensor(values).view(2, 3)) and torch.equal(found["p"], found["w"])
    assert nodes == [onnx_file.Node("/fc/MatMul", ("x", "w"), "MatMul")]
    with pytest.raises(ValueError, match="cut off"):
        onnx_file.read(data[:-4])


def test_an_inner_value_can_be_asked_of_an_onnx_file(tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    make = onnx.helper
    value = [make.make_tensor_value_info(name, 1, [2]) for name in ("x", "z")]
    nodes = [make.make_node("Add", ["x", "x"], ["y"], "first"), make.make_node("Mul", ["y", "y"], ["z"], "second")]
    graph = make.make_graph(nodes, "g", value[:1], value[1:])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 14)], ir_version=8)
    data = onnx_file.with_output(model.SerializeToString(), "y")
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (found,) = session.run(["y"], {"x": torch.tensor([1.0, 3.0]).numpy()})
    assert found.tolist() == [2.0, 6.0]


def test_styles_of_one_emoji_are_held_out_together():
    names = [f"1f{i:03x}" for i in range(1000)]
    share = sum(emoji.held(name, 0.2) for name in names) / 1000
    assert 0.15 < share < 0.25
    assert emoji.plain("2764-FE0F-200D-1F525") == "2764-200d-1f525"


def test_an_icon_is_drawn_in_its_own_box_or_its_parent():
    icons = {"icons": {"a": {"body": "<path/>", "width": 40}}, "aliases": {"b": {"parent": "a"}}, "width": 16, "height": 24}
    assert 'viewBox="0 0 40 24"><path/></svg>' in emoji.drawing(icons, "a")
    assert emoji.drawing(icons, "b") == emoji.drawing(icons, "a")
    assert emoji.drawing(icons, "nothing") is None


def test_a_set_that_tells_no_code_points_is_known_by_its_names():
    icons = {"icons": {"Red-Heart": {}, "nobody": {}}, "aliases": {"grinning_face": {}}}
    names = {"redheart": "2764", "grinningface": "1f600"}
    assert list(emoji.codes(icons, {}, names)) == [("2764", "Red-Heart"), ("1f600", "grinning_face")]
    assert list(emoji.codes(icons, {"2764-FE0F": "nobody"}, names)) == [("2764", "nobody")]
