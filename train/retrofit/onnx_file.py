"""As much of an ONNX file as weights need, read from its bytes: initialisers, and which node uses which.

An ONNX file is one protocol-buffer message. A message is a row of fields, each a key (number << 3 | wire type) and a value: a
varint (0), eight bytes (1), a length and so many bytes (2), or four bytes (5). Numbers below are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

GRAPH, NODE, INITIALIZER, OUTPUT = 7, 1, 5, 12  # of a model, and of its graph
FLOAT = 1


@dataclass(frozen=True)
class Node:
    name: str
    inputs: tuple[str, ...]
    kind: str


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message: number and value."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"wire type {wire} at byte {at}: this is no ONNX file")
        length, at = varint(data, at) if wire == 2 else (8 if wire == 1 else 4, at)
        if at + length > len(data):
            raise ValueError(f"a field of {length} bytes at {at} of {len(data)}: the file is cut off, or no ONNX file")
        yield key >> 3, data[at : at + length]
        at += length


def numbers(value: int | memoryview) -> list[int]:
    """A repeated number, one by one or packed."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def text(value: int | memoryview) -> str:
    return bytes(value).decode() if not isinstance(value, int) else ""


def tensor(data: memoryview) -> tuple[str, Tensor] | None:
    """Name and values of an initialiser of float32 kept as raw bytes; None for any other."""
    shape: list[int] = []
    name, kind, raw = "", 0, None
    for number, value in fields(data):
        if number == 1:
            shape += numbers(value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8:
            name = text(value)
        elif number == 9:
            raw = value
    if kind != FLOAT or raw is None or isinstance(raw, int) or len(raw) != 4 * prod(shape):
        return None
    return name, torch.frombuffer(bytearray(raw), dtype=torch.float32).view(shape)


def node(data: memoryview) -> Node:
    inputs, name, kind = [], "", ""
    for number, value in fields(data):
        if number == 1:
            inputs.append(text(value))
        elif number == 3:
            name = text(value)
        elif number == 4:
            kind = text(value)
    return Node(name, tuple(inputs), kind)


def read(data: bytes) -> tuple[dict[str, Tensor], list[Node]]:
    """Float initialisers by name, and the nodes."""
    weights, nodes = {}, []
    for number, graph in fields(memoryview(data)):
        if number != GRAPH or isinstance(graph, int):
            continue
        for part, value in fields(graph):
            if part == INITIALIZER and not isinstance(value, int) and (found := tensor(value)) is not None:
                weights[found[0]] = found[1]
            elif part == NODE and not isinstance(value, int):
                nodes.append(node(value))
    return weights, nodes


def with_output(data: bytes, name: str) -> bytes:
    """The same model that also gives the value `name`: a second graph field is merged with the first by whoever reads it."""
    told = _field(1, name.encode())  # ValueInfoProto.name
    return data + _field(GRAPH, _field(OUTPUT, told))


def _field(number: int, value: bytes) -> bytes:
    length, out = len(value), bytearray([number << 3 | 2])
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    return bytes(out) + bytes([length]) + value
