"""The `net:` section: parts one after the other, each `{name, type, prev, kwargs}`, built into a network.

    backbone, head, classification post-processing
    backbone, neck, head over anchors, retina_post
    backbone, neck, NaiveRPN, rpn_post, BboxFC_Pre, BboxFC, bbox_post

1. What is not known is an OptionError that names the part and the nearest known word.
2. `prev` is the part whose features or outputs a part takes; without it that is the one the order says.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from models.networks import bbox_head, classifier_head, fpn, resnet, retina_head, rpn_head
from models.networks.network import Classifier, Network, OneStage, TwoStage
from models.sections import Section
from onnxsparse.errors import OptionError, brief, nearest, one_line

KINDS = {
    **dict.fromkeys(resnet.BLOCKS, "backbone"),
    "FPN": "neck",
    "sparse_base_cls_head": "head",
    "base_cls_head": "head",
    "base_cls_postprocess": "cls_post",
    "RetinaHeadWithBN": "retina_head",
    "RetinaHead": "retina_head",
    "retina_post": "retina_post",
    "NaiveRPN": "rpn_head",
    "rpn_post": "rpn_post",
    "BboxFC_Pre": "bbox_pre",
    "BboxFC": "bbox_head",
    "bbox_post": "bbox_post",
}
LAYOUTS = (
    ("backbone", "head", "cls_post"),
    ("backbone", "neck", "retina_head", "retina_post"),
    ("backbone", "neck", "rpn_head", "rpn_post", "bbox_pre", "bbox_head", "bbox_post"),
)
TAKES = {"bbox_pre": ("rpn_post",), "bbox_head": ("neck", "bbox_pre"), "bbox_post": ("bbox_head",)}
"""What `prev` may name where that is not the part before."""
POSTS = {
    "cls_post": "models.classification_post",
    "retina_post": "models.detection.retina_post",
    "rpn_post": "models.detection.rpn_post",
    "bbox_pre": "models.detection.bbox_pre",
    "bbox_post": "models.detection.bbox_post",
}


@dataclass(frozen=True)
class Entry:
    """One part as it is written."""

    name: str
    type: str
    prev: str
    kwargs: Section

    @property
    def kind(self) -> str:
        return KINDS[self.type]


def build(section: Sequence[Mapping[str, Any]], seed: int) -> Network:
    """The network of a `net:` section; its initial weights depend on the seed alone."""
    entries = _entries(section)
    layout = _layout(entries)
    by_kind = {entry.kind: entry for entry in entries}
    _demand_order(entries, by_kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return _BUILD[layout](by_kind)
        except (MemoryError, RuntimeError) as error:
            raise OptionError(f"net describes more than fits in memory: {one_line(error)[:200]}") from error


def _entries(section: Any) -> list[Entry]:
    if not isinstance(section, Sequence) or isinstance(section, str) or not section:
        raise OptionError(f"net is a list of parts, not {brief(section)}")
    found: list[Entry] = []
    for place, one in enumerate(section):
        part = Section(f"net[{place}]", one)
        name = part.any("name")
        if not isinstance(name, str) or not name.isidentifier():
            part.refuse("name", "a name of letters, digits and _", name)
        if name in (entry.name for entry in found):
            raise OptionError(f"net has two parts called {name}")
        part = Section(f"net: {name}", one)
        part.any("name")
        kind, prev = part.word("type", list(KINDS)), str(part.any("prev", ""))
        found.append(Entry(name, kind, prev, part.part("kwargs")))
        part.end()
    return found


def _layout(entries: Sequence[Entry]) -> tuple[str, ...]:
    kinds = tuple(entry.kind for entry in entries)
    for place, entry in enumerate(entries):
        fits = [layout for layout in LAYOUTS if layout[:place] == kinds[:place]]
        if not any(layout[place : place + 1] == (entry.kind,) for layout in fits):
            after = f"after {entries[place - 1].name}" if place else "first"
            raise OptionError(f"net: {entry.name} ({entry.type}) cannot come {after}; {_expected(fits, place)}")
    if kinds not in LAYOUTS:
        fits = [layout for layout in LAYOUTS if layout[: len(kinds)] == kinds]
        raise OptionError(f"net ends with {entries[-1].name} ({entries[-1].type}); {_expected(fits, len(kinds))}")
    return kinds


def _expected(layouts: Sequence[tuple[str, ...]], place: int) -> str:
    kinds = {layout[place] for layout in layouts if len(layout) > place}
    known = [name for name, kind in KINDS.items() if kind in kinds]
    return f"there comes {', '.join(known)}" if known else "there comes nothing more"


def _demand_order(entries: Sequence[Entry], by_kind: Mapping[str, Entry]) -> None:
    """Every `prev` names a part that gives what the part takes."""
    for place, entry in enumerate(entries):
        before = [one.name for one in entries[:place]]
        if entry.prev and entry.prev not in before:
            raise OptionError(
                f"net: {entry.name}.prev is no part before it: {entry.prev:.60}{nearest(entry.prev, before)}"
            )
        takes = [by_kind[kind].name for kind in TAKES.get(entry.kind, ())] or before[-1:]
        if entry.prev and entry.prev not in takes:
            raise OptionError(f"net: {entry.name}.prev is {' or '.join(takes)}, not {entry.prev}")


def _backbone(entry: Entry) -> Any:
    return resnet.make(entry.type, entry.kwargs)


def _classifier(parts: Mapping[str, Entry]) -> Network:
    backbone = _backbone(parts["backbone"])
    head = classifier_head.make(parts["head"].kwargs, backbone.out_planes)
    post = _post(parts["cls_post"], backbone.out_strides)
    _demand_same(parts["cls_post"], "num_classes", getattr(post, "num_classes", None), head.num_classes)
    return Classifier({parts["backbone"].name: backbone, parts["head"].name: head}, head.num_classes, post)


def _one_stage(parts: Mapping[str, Entry]) -> Network:
    backbone, neck = _pyramid(parts)
    entry = parts["retina_head"]
    head = retina_head.make(entry.type, entry.kwargs, neck.out_planes)
    post = _post(parts["retina_post"], neck.out_strides)
    _demand_anchors(parts["retina_post"], post, head)
    children = {parts["backbone"].name: backbone, parts["neck"].name: neck, entry.name: head}
    return OneStage(children, head.num_classes - 1, post, len(neck.out_planes))


def _two_stage(parts: Mapping[str, Entry]) -> Network:
    backbone, neck = _pyramid(parts)
    rpn = rpn_head.make(parts["rpn_head"].kwargs, neck.out_planes)
    head = bbox_head.make(parts["bbox_head"].kwargs, neck.out_planes)
    posts = [_post(parts[kind], neck.out_strides) for kind in ("rpn_post", "bbox_pre", "bbox_post")]
    _demand_anchors(parts["rpn_post"], posts[0], rpn)
    _demand_regions(parts, posts[1], posts[2], head)
    modules = (("backbone", backbone), ("neck", neck), ("rpn_head", rpn), ("bbox_head", head))
    children = {parts[kind].name: module for kind, module in modules}
    return TwoStage(children, head.num_classes - 1, parts["neck"].name, len(neck.out_planes), posts)


_BUILD = dict(zip(LAYOUTS, (_classifier, _one_stage, _two_stage)))


def _pyramid(parts: Mapping[str, Entry]) -> tuple[Any, Any]:
    backbone = _backbone(parts["backbone"])
    return backbone, fpn.make(parts["neck"].kwargs, backbone.out_planes, backbone.out_strides)


def _post(entry: Entry, strides: Sequence[int]) -> Any:
    """Post-processing, which checks its own words."""
    return importlib.import_module(POSTS[entry.kind]).make(dict(entry.kwargs.values), list(strides))


def _demand_anchors(entry: Entry, post: Any, head: Any) -> None:
    for name in ("num_classes", "num_anchors"):
        _demand_same(entry, name, getattr(post, name, None), getattr(head, name))


def _demand_regions(parts: Mapping[str, Entry], pre: Any, post: Any, head: Any) -> None:
    """Words that stand in two parts: what regions are pooled for, and what their locations mean."""
    _demand_same(parts["bbox_pre"], "pool_size", pre.pool_size, head.pool_size, parts["bbox_head"].name)
    shared = post.decoder.share_location, head.share_location
    _demand_same(parts["bbox_post"], "share_location", *shared, parts["bbox_head"].name)
    deltas = asdict(pre.deltas), asdict(post.decoder.deltas)
    _demand_same(parts["bbox_pre"], "bbox_normalize", *deltas, parts["bbox_post"].name)


def _demand_same(entry: Entry, name: str, found: Any, wanted: Any, other: str = "the head before it") -> None:
    if found is not None and found != wanted:
        raise OptionError(f"net: {entry.name} has {name} {found}, and {other} {wanted}")
