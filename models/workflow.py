"""Builders of networks, data, evaluation and exports for a runner, from the sections of a training configuration.

`Workflow` is a `Builders` of onnxsparse/dialects/msbench/builders.py. Its parts are imported when they are asked for,
so whoever only reads a dataset needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxsparse.dialects.msbench.builders import Evaluator


class Workflow:
    """What `net:` and `dataset:` describe, built with the networks and the data of this folder."""

    def network(self, net: Sequence[Mapping[str, Any]], seed: int) -> Any:
        """A classifier, a one-stage or a two-stage detector; initial weights depend on the seed alone."""
        from models.networks.net_section import build

        return build(net, seed)

    def load(self, network: Any, state: Mapping[str, Any]) -> list[str]:
        """Fill the network from a state dict of its own or of torchvision's names; what has to be said of it."""
        from models.networks.public_weights import load

        return load(network, state)

    def dataset(self, section: Mapping[str, Any], part: str, seed: int) -> Any:
        """The images of `train` or `test`, a `Dataset`."""
        from models.data.dataset_section import read_dataset

        return read_dataset(section, part, seed)

    def evaluator(self, section: Mapping[str, Any], dataset: Any) -> Evaluator:
        """What `dataset.test.dataset.kwargs.evaluator` says."""
        from models.evaluation.evaluators import read_evaluator

        return read_evaluator(section, dataset)

    def finish(
        self, network: Any, files: Mapping[str, str], image: Any, path: str, whole: bool, dataset: Any = None
    ) -> list[str]:
        """Write post-processing beside the exported parts and, where asked, one file of all."""
        from models.export.finish import finish

        return finish(network, files, image, path, whole, {} if dataset is None else dataset.categories)
