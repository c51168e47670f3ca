"""Files that are no models, or models that lie. Each writer puts one into a folder and returns the path to open.

FATAL: nothing sensible can be done, every command must refuse.
ODD: a command may refuse or cope, but with one line and no mess.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

import numpy as np
import onnx
from onnx import helper

from .case import feed, graph, model, node, output_info, simple, tensor, weights
from .external import outside

Writer = Callable[[Path], Path]
FATAL: dict[str, Writer] = {}
ODD: dict[str, Writer] = {}


def fatal(writer: Writer) -> Writer:
    FATAL[writer.__name__] = writer
    return writer


def odd(writer: Writer) -> Writer:
    ODD[writer.__name__] = writer
    return writer


def valid() -> onnx.ModelProto:
    """A small model in which everything is right: 16 x 16 and 32 x 16 weights, a Conv, a Constant, an If."""
    w, k, v = weights(16, 16), weights(6, 8, 3, 3), weights(16, 8, seed=3)
    branch = [
        helper.make_graph([node(op, "y1", f"{op}_out")], op, [], [output_info(f"{op}_out", 2)])
        for op in ("Relu", "Neg")
    ]
    nodes = [
        node("MatMul", "x w", "y0"),
        node("Constant", "", "v", value=tensor("", v)),
        node("MatMul", "y0 v", "y1"),
        node("If", "c", "y", then_branch=branch[0], else_branch=branch[1]),
        node("Conv", "image k", "z"),
    ]
    feeds = {"x": feed(4, 16), "c": np.array(True), "image": feed(1, 8, 5, 5)}
    return model(graph(nodes, feeds, [("y", 2), ("z", 4)], [tensor("w", w), tensor("k", k)]))


def small() -> onnx.ModelProto:
    built = simple([node("MatMul", "x w", "y")], {"x": feed(4, 16)}, [("y", 2)], {"w": weights(16, 16)}, [])
    return built.model


def save(folder: Path, made: onnx.ModelProto) -> Path:
    return _bytes(folder, made.SerializeToString())


def _bytes(folder: Path, content: bytes, name: str = "broken.onnx") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


# Files that are not models


@fatal
def missing(folder: Path) -> Path:
    return folder / "nowhere.onnx"


@fatal
def directory(folder: Path) -> Path:
    (folder / "dir.onnx").mkdir()
    return folder / "dir.onnx"


@fatal
def empty_file(folder: Path) -> Path:
    return _bytes(folder, b"")


@fatal
def random_bytes(folder: Path) -> Path:
    return _bytes(folder, np.random.default_rng(1).integers(0, 256, 100_000, dtype=np.uint8).tobytes())


@fatal
def zero_bytes(folder: Path) -> Path:
    return _bytes(folder, bytes(10_000))


@fatal
def html_page(folder: Path) -> Path:
    return _bytes(folder, b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not found</body></html>\n" * 20)


@fatal
def git_lfs_pointer(folder: Path) -> Path:
    return _bytes(folder, b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 102400\n")


@fatal
def json_text(folder: Path) -> Path:
    return _bytes(folder, b'{"irVersion": "8", "graph": {"node": []}}')


@fatal
def zip_archive(folder: Path) -> Path:
    return _bytes(folder, b"PK\x03\x04" + bytes(range(256)) * 40)


@fatal
def truncated(folder: Path) -> Path:
    whole = valid().SerializeToString()
    return _bytes(folder, whole[: len(whole) // 2])


@fatal
def truncated_by_one(folder: Path) -> Path:
    return _bytes(folder, valid().SerializeToString()[:-1])


@fatal
def varint_overlong(folder: Path) -> Path:
    """A length in eleven bytes."""
    return _bytes(folder, b"\x3a" + b"\xff" * 11 + b"\x01" + valid().graph.SerializeToString())


@fatal
def group_never_ends(folder: Path) -> Path:
    """Ten million starts of a protobuf group."""
    return _bytes(folder, b"\x08\x08" + b"\xfb\x3e" * 1_000_000)


@fatal
def length_beyond_the_file(folder: Path) -> Path:
    return _bytes(folder, b"\x08\x08\x3a\xff\xff\xff\xff\x07" + bytes(100))


@fatal
def text_model_without_graph(folder: Path) -> Path:
    return _bytes(folder, onnx.ModelProto(ir_version=8, producer_name="nobody").SerializeToString())


@fatal
def unreadable_pipe(folder: Path) -> Path:
    """A named pipe with nobody at the other end must not hang."""
    os.mkfifo(folder / "pipe.onnx")
    return folder / "pipe.onnx"


@fatal
def link_to_itself(folder: Path) -> Path:
    (folder / "loop.onnx").symlink_to(folder / "loop.onnx")
    return folder / "loop.onnx"


# External data


def _external(folder: Path, location: str, offset: int = 0, length: int = 1024, size: int = 1024) -> Path:
    made = small()
    made.graph.initializer[0].CopyFrom(outside("w", weights(16, 16), location, offset, length))
    (folder / "w.bin").write_bytes(bytes(range(256)) * (size // 256))
    return save(folder, made)


@fatal
def external_missing(folder: Path) -> Path:
    return _external(folder, "not_there.bin")


@fatal
def external_parent(folder: Path) -> Path:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "secret.bin").write_bytes(bytes(1024))
    return _external(inner, "../secret.bin")


@fatal
def external_parent_hidden(folder: Path) -> Path:
    inner = folder / "inner"
    (inner / "deep").mkdir(parents=True)
    (folder / "secret.bin").write_bytes(bytes(1024))
    return _external(inner, "deep/../../secret.bin")


@fatal
def external_absolute(folder: Path) -> Path:
    (folder / "absolute.bin").write_bytes(bytes(1024))
    inner = folder / "inner"
    inner.mkdir()
    return _external(inner, str(folder / "absolute.bin"))


@fatal
def external_symlink(folder: Path) -> Path:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "secret.bin").write_bytes(bytes(1024))
    (inner / "link.bin").symlink_to(folder / "secret.bin")
    return _external(inner, "link.bin")


@fatal
def external_symlinked_folder(folder: Path) -> Path:
    (folder / "other").mkdir()
    (folder / "other" / "secret.bin").write_bytes(bytes(1024))
    inner = folder / "inner"
    inner.mkdir()
    (inner / "sub").symlink_to(folder / "other")
    return _external(inner, "sub/secret.bin")


@fatal
def external_directory(folder: Path) -> Path:
    (folder / "data").mkdir()
    return _external(folder, "data")


@fatal
def external_device(folder: Path) -> Path:
    return _external(folder, "/dev/zero")


@fatal
def external_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.bin")
    return _external(folder, "pipe.bin")


@fatal
def external_empty_location(folder: Path) -> Path:
    return _external(folder, "")


@fatal
def external_nul_in_location(folder: Path) -> Path:
    return _external(folder, "w.bin\x00.txt")


@fatal
def external_beyond_the_end(folder: Path) -> Path:
    return _external(folder, "w.bin", offset=512)


@fatal
def external_offset_far_beyond(folder: Path) -> Path:
    return _external(folder, "w.bin", offset=2**62)


@fatal
def external_negative_offset(folder: Path) -> Path:
    return _external(folder, "w.bin", offset=-512, size=4096)


@fatal
def external_length_too_long(folder: Path) -> Path:
    return _external(folder, "w.bin", length=2**40)


@fatal
def external_length_too_short(folder: Path) -> Path:
    return _external(folder, "w.bin", length=100)


@fatal
def external_offset_is_text(folder: Path) -> Path:
    path = _external(folder, "w.bin")
    made = onnx.load(str(path), load_external_data=False)
    next(entry for entry in made.graph.initializer[0].external_data if entry.key == "offset").value = "12 elephants"
    return save(folder, made)


@fatal
def external_without_location(folder: Path) -> Path:
    path = _external(folder, "w.bin")
    made = onnx.load(str(path), load_external_data=False)
    del made.graph.initializer[0].external_data[:]
    return save(folder, made)


@odd
def external_is_the_model_itself(folder: Path) -> Path:
    return _external(folder, "broken.onnx")
