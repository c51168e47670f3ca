"""What a runner of training configurations needs to be told to build networks and data: `net:` and `dataset:`.

The package has no networks of its own: whoever starts the runner hands it something that builds them, such as
models/workflow.py of the repository. `Batch` is that of the builders; the runner hands it on.

1. A loss is this process's part of the loss of the whole batch: the parts of all processes add up to what one process
   would have of all samples. `total` adds a number up over the processes, for what losses are divided by; every process
   calls it equally often.
2. Nothing that is drawn at random depends on the number of processes or workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

Total = Callable[[float], float]


class Dataset(Protocol):
    """The images of a `dataset:` section's part, `train` or `test`."""

    size: int
    """How many images there are."""
    batch: int
    """How many images of a batch the configuration gives each process."""

    fingerprint: str
    """A digest of the annotations: a run does not go on with others."""

    @property
    def classes(self) -> int:
        """How many classes a network has to know for its labels, the background not counted."""

    def per_epoch(self, batch: int) -> int:
        """How many batches of so many images an epoch has, those of all processes together."""

    def epoch(
        self, number: int, batch: int, rank: int = 0, processes: int = 1, begin: int = 0, agree: Any = None
    ) -> Iterator[Any]:
        """This process's share of every batch of an epoch, from batch `begin`; `batch` is the size over all processes.

        `agree` is given the height and width that this share would be padded to, and returns those of the whole batch.
        """


class Evaluator(Protocol):
    """Gathers answers, and says what they are worth."""

    main: str
    """The figure by which one network is better than another; larger is better."""

    def add(self, batch: Any, answers: Sequence[Any]) -> None:
        """Take the answers for a batch."""

    def figures(self) -> dict[str, float]:
        """Figures by name, such as top1, mAP or mAP50."""


class Net(Protocol):
    """A part of a network that is traced and exported by itself: tensors in, tensors out."""

    name: str
    module: Any
    inputs: Sequence[str]
    outputs: Sequence[str]

    def examples(self, image: Any) -> tuple[Any, ...]:
        """Tensors to run the part with, for a batch of images; of a part behind post-processing, what that makes."""


class BuiltNetwork(Protocol):
    """A torch module whose children are called as in `net:`; running it on images runs every layer."""

    classes: int
    """How many classes it knows, the background not counted."""

    @property
    def nets(self) -> Sequence[Net]:
        """The parts, in order: one, or in a two-stage detector two."""

    def losses(self, batch: Any, total: Total) -> dict[str, Any]:
        """The losses by name, tensors with gradients, that are added up."""

    def teach(self, batch: Any, teacher: Any, total: Total) -> dict[str, Any]:
        """The same against another network of the same kind in place of labels."""

    def answers(self, batch: Any) -> Sequence[Any]:
        """What the network says of each image, post-processing included; without gradients."""


class Builders(Protocol):
    """Builds what the sections of a configuration describe; what it does not know is an OptionError by name."""

    def network(self, net: Sequence[Mapping[str, Any]], seed: int) -> Any:
        """A `BuiltNetwork`."""

    def load(self, network: Any, state: Mapping[str, Any]) -> list[str]:
        """Fill the network with a state dict, of its own names or of a public checkpoint; what has to be said of it."""

    def dataset(self, section: Mapping[str, Any], part: str, seed: int) -> Dataset:
        """The images of `train` or `test`."""

    def evaluator(self, section: Mapping[str, Any], dataset: Dataset) -> Evaluator:
        """What `dataset.test.dataset.kwargs.evaluator` says."""

    def finish(
        self, network: Any, files: Mapping[str, str], image: Any, path: str, whole: bool, dataset: Dataset | None = None
    ) -> list[str]:
        """Write the post-processing beside the exported parts, which `files` names, and one file of all where asked.

        `image` is a batch of one as the network was exported with; `path` is what the names of the files begin with.
        The file of all keeps the record of what its zeros are for. Files that answer in labels say which classes of
        `dataset` these are. Returns the paths of the files written.
        """
