"""Networks as `net:` puts them together: a classifier, a one-stage and a two-stage detector.

1. Children are called as in `net:`, so a weight is `backbone.layer1.0.conv1.weight` in every mask, record, checkpoint.
2. What is traced and exported by itself is a `Part`: the same children under the same names, tensors in, tensors out.
   Post-processing has no weights and is no module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from models.data.batch import Batch
from models.detection import teaching
from onnxsparse.dialects.msbench.builders import Total
from onnxsparse.errors import OptionError

Children = Mapping[str, Any]
SECOND = ("cls", "loc")


@dataclass(frozen=True)
class Part:
    """A part of a network that is traced and exported by itself."""

    name: str
    module: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    of: Any

    def examples(self, image: Any) -> tuple[Any, ...]:
        """Tensors to run the part with, for a batch of images."""
        return tuple(self.of.examples(self.name, image))


class InOrder(nn.Module):  # type: ignore[misc, unused-ignore]
    """Children one after the other, the last one's answer; of `keep` levels the neck's features, too.

    It is made anew around the children of a network and takes over their mode: a fresh module in training mode around
    children in eval mode would have an exporter put these back into training mode afterwards.
    """

    def __init__(self, children: Children, training: bool, keep: tuple[str, Sequence[int]] | None = None) -> None:
        super().__init__()
        self.keep, self.training = keep, training
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: Any) -> Any:
        kept: list[Any] = []
        for name, child in self.named_children():
            x = child(x)
            if self.keep is not None and name == self.keep[0]:
                kept = [x[level] for level in self.keep[1]]
        return (x, kept) if self.keep is not None else x


class Network(nn.Module):  # type: ignore[misc, unused-ignore]
    """Children in their order, and what computes losses and answers from their outputs.

    Of `classes` the background is none.
    """

    def __init__(self, children: Children, classes: int) -> None:
        super().__init__()
        self.names, self.classes = tuple(children), classes
        for name, child in children.items():
            if hasattr(self, name):
                raise OptionError(f"net: no part can be called {name}, which is something else of a network")
            self.add_module(name, child)

    def part(self, name: str, names: Sequence[str], inputs: str, outputs: Sequence[str], keep: Any = None) -> Part:
        children = {one: self.get_submodule(one) for one in names}
        return Part(name, InOrder(children, self.training, keep), (inputs,), tuple(outputs), self)

    def image(self, batch: Batch) -> Any:
        """The images of a batch where the weights are."""
        return torch.from_numpy(np.ascontiguousarray(batch.image)).to(next(self.parameters()).device)

    def examples(self, name: str, image: Any) -> Sequence[Any]:
        return (image,)


class Classifier(Network):
    """Backbone and head; logits."""

    def __init__(self, children: Children, classes: int, post: Any) -> None:
        super().__init__(children, classes)
        self.post = post

    @property
    def nets(self) -> Sequence[Part]:
        return (self.part("net", self.names, "image", ("logits",)),)

    def forward(self, image: Any) -> Any:
        return self.nets[0].module(image)

    def losses(self, batch: Batch, total: Total) -> dict[str, Any]:
        return dict(self.post.losses(self(self.image(batch)), batch, total))

    def teach(self, batch: Batch, teacher: Any, total: Total) -> dict[str, Any]:
        image = self.image(batch)
        with torch.no_grad():
            taught = teacher(image)
        return dict(self.post.teach(self(image), taught, total))

    def answers(self, batch: Batch) -> Sequence[Any]:
        with torch.no_grad():
            return list(self.post.answers(self(self.image(batch)), batch))


class OneStage(Network):
    """Backbone, neck and a head over anchors: (class, location) for each level."""

    def __init__(self, children: Children, classes: int, post: Any, levels: int) -> None:
        super().__init__(children, classes)
        self.post, self.levels = post, levels

    @property
    def nets(self) -> Sequence[Part]:
        return (self.part("net", self.names, "image", of_levels(self.levels)),)

    def forward(self, image: Any) -> Any:
        return self.nets[0].module(image)

    def losses(self, batch: Batch, total: Total) -> dict[str, Any]:
        return dict(self.post.losses(self(self.image(batch)), batch, total))

    def teach(self, batch: Batch, teacher: Any, total: Total) -> dict[str, Any]:
        image = self.image(batch)
        with torch.no_grad():
            taught = teacher(image)
        return dict(teaching.one_stage(self(image), taught, total))

    def answers(self, batch: Batch) -> Sequence[Any]:
        with torch.no_grad():
            return list(self.post.answers(self(self.image(batch)), batch))


class TwoStage(Network):
    """Backbone, neck and proposals in one part, the head of each proposal's features in another."""

    def __init__(self, children: Children, classes: int, neck: str, levels: int, posts: Sequence[Any]) -> None:
        super().__init__(children, classes)
        self.levels, self._neck = levels, neck
        self.rpn_post, self.pre, self.post = posts

    @property
    def nets(self) -> Sequence[Part]:
        return (self._first, self.part("bbox_head", self.names[-1:], "pooled", SECOND))

    @property
    def _first(self) -> Part:
        used = tuple(self.pre.levels)
        outputs = of_levels(self.levels) + [f"feature_{level}" for level in used]
        return self.part("net", self.names[:-1], "image", outputs, (self._neck, used))

    @property
    def second(self) -> Any:
        return self.get_submodule(self.names[-1])

    def first(self, image: Any) -> tuple[Any, list[Any]]:
        """What the heads of anchors say, and the features that regions are pooled from."""
        outputs, features = self._first.module(image)
        return outputs, features

    def forward(self, image: Any) -> Any:
        """Outputs of the anchors, and class and location of every proposal."""
        outputs, features = self.first(image)
        return outputs, *self.second(self._pooled(outputs, features, unlabelled(image)))

    def examples(self, name: str, image: Any) -> Sequence[Any]:
        if name != "bbox_head":
            return (image,)
        with torch.no_grad():
            outputs, features = self.first(image)
            return (self._pooled(outputs, features, unlabelled(image)),)

    def losses(self, batch: Batch, total: Total) -> dict[str, Any]:
        outputs, features = self.first(self.image(batch))
        found = dict(self.rpn_post.losses(outputs, batch, total))
        rois, targets = self.pre.sample(self._proposals(outputs, batch, True), batch)
        cls, loc = self.second(self.pre.pool(features, rois))
        return {**found, **self.post.losses(cls, loc, targets, total)}

    def teach(self, batch: Batch, teacher: Any, total: Total) -> dict[str, Any]:
        """Both networks look at the teacher's proposals: those of a network that learns would move."""
        image = self.image(batch)
        with torch.no_grad():
            taught, seen = teacher.first(image)
            rois = teacher.rois(taught, batch)
            wanted = teacher.second(teacher.pre.pool(seen, rois))
        outputs, features = self.first(image)
        answer = self.second(self.pre.pool(features, rois))
        return {**teaching.one_stage(outputs, taught, total), **teaching.second_stage(answer, wanted, total)}

    def answers(self, batch: Batch) -> Sequence[Any]:
        with torch.no_grad():
            outputs, features = self.first(self.image(batch))
            rois = self.rois(outputs, batch)
            cls, loc = self.second(self.pre.pool(features, rois))
            return list(self.post.answers(cls, loc, rois, batch))

    def rois(self, outputs: Any, batch: Batch) -> Any:
        """All proposals as regions of the images of a batch."""
        return self.pre.rois(self._proposals(outputs, batch, False))

    def _pooled(self, outputs: Any, features: Any, batch: Batch) -> Any:
        return self.pre.pool(features, self.rois(outputs, batch))

    def _proposals(self, outputs: Any, batch: Batch, training: bool) -> Any:
        with torch.no_grad():
            return self.rpn_post.proposals(outputs, batch, training)


def of_levels(count: int) -> list[str]:
    """Names of the outputs of a head over the levels of a pyramid."""
    return [f"{what}_{level}" for level in range(count) for what in SECOND]


def unlabelled(image: Any) -> Batch:
    """A batch of images alone."""
    count, sizes = len(image), [(int(image.shape[2]), int(image.shape[3]))] * len(image)
    return Batch(
        image.detach().cpu().numpy(),
        range(count),
        range(count),
        sizes=sizes,
        scales=[(1.0, 1.0)] * count,
        ids=range(count),
    )
