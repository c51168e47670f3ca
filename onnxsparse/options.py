"""The options of every command, declared once: name, type, default, meaning, example, and the command-line flag.

1. A command has one frozen dataclass here. Its fields are the keyword arguments of the Python function, and its flags
   are what the command line takes: `cli.arguments` makes the argument parser from them, `recipes.flags` the recipe.
2. Signatures and docstrings of the functions are written out, for `help()` and for editors, and docs/cli.md for
   readers; tests/test_options.py holds all of them against this module, and `python tests/test_options.py` renews them.
3. Messages name options by their flags, `--exclude stem`. The command line shows them so; `in_python` spells them for
   those who call from Python, `exclude="stem"`: see `errors.OnnxSparseError`.

Nothing of the package is imported here, so that every room may look an option up.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Callable, ClassVar, Union

Names = Union[str, Sequence[str]]
Path = Union[str, "os.PathLike[str]"]
Masks = Union[str, "os.PathLike[str]", Mapping[str, Any]]
Axes = Union[Mapping[str, Any], Sequence[str], str, None]

REQUIRED = ...
"""The default of an argument that has none."""


@dataclass(frozen=True)
class Option:
    """One option. `meaning` is what every reader gets; `more` stands behind it on the reference page alone,
    and `python` in docstrings.

    `values` are words that it takes, by which a value is told from a word of the sentence in a message. `recipe` is the
    field of a modifier that it becomes, such as `training.rate`.
    """

    name: str
    default: Any
    annotation: str
    meaning: str
    example: str
    flags: tuple[str, ...] = ()
    more: str = ""
    python: str = ""
    group: str = ""
    metavar: str | None = None
    values: tuple[str, ...] = ()
    recipe: str = ""

    @property
    def kind(self) -> str:
        """How it is given: switch, whole, number, names (several words), pairs (NAME=VALUE) or text."""
        plain = self.annotation.replace(" | None", "")
        kinds = {"bool": "switch", "int": "whole", "float": "number", "Names": "names", "Axes": "pairs"}
        if self.name == "metrics":
            return "names"
        return "pairs" if "Mapping[" in plain and "Path" not in plain else kinds.get(plain, "text")

    def spelled(self, value: str | None = None) -> str:
        """The argument as Python has it: `strict=True`, `exclude=`, `loss="mse"`, `dims={"height": 224}`."""
        if self.kind == "switch":
            return f"{self.name}=True"
        if value is None:
            return f"{self.name}="
        key, separator, one = value.rpartition("=")
        if self.kind == "pairs" and separator:
            return f"{self.name}={{{_literal(key)}: {_literal(one, numbers=True)}}}"
        text = _literal(value, numbers=self.kind not in ("text", "names") or "float" in self.annotation)
        return f"{self.name}=[{text}]" if self.name == "metrics" else f"{self.name}={text}"

    def takes(self, word: str) -> bool:
        """Whether a word behind the flag in a message is its value, and not one of the sentence."""
        if self.kind == "switch":
            return False
        if word[:1] == "'" or all(map(_NUMBER.fullmatch, word.split(","))) or _PLACEHOLDER.fullmatch(word):
            return True
        if self.kind in ("pairs", "whole", "number"):
            return self.kind == "pairs" and "=" in word
        if "*" in self.values:
            return word not in _SENTENCE
        return ":" in word or all(part in self.values for part in word.split(","))


_NUMBER = re.compile(r"-?\d+(\.\d+)?%?")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z.,=]*")
_SENTENCE = ("and", "decides", "it", "or", "out", "says", "to", "too")
_ANY = ("*",)


def _literal(value: str, numbers: bool = False) -> str:
    """A value as Python writes it; what a message quotes already stays as it is, and so does a placeholder."""
    if (
        value[:1] in "'\"[{"
        or _PLACEHOLDER.fullmatch(value)
        or (numbers and _NUMBER.fullmatch(value) and "%" not in value)
    ):
        return value
    return f'"{value}"'


def option(default: Any, meaning: str, example: str = "", flag: str | None = "", short: str = "", **more: Any) -> Any:
    """A field of the dataclasses below; `flag` differs from the name, or is None for an argument of Python alone.

    `example` is a value as one types it behind the flag; a switch needs none. `group` and the modifier of `recipe` are
    those of the class, where nothing else is said.
    """
    flags = () if flag is None else (*([short] if short else []), flag)
    return field(default=default, metadata={"meaning": meaning, "example": example, "flags": flags, **more})


def declared(command: type[Any]) -> type[Any]:
    """A dataclass that is only looked up: without the methods of a value, which cost time to make."""
    return dataclass(frozen=True, init=False, repr=False, eq=False)(command)


def like(other: type, name: str, **changes: Any) -> Any:
    """The option of another command, with other words where they are given."""
    known = dict(vars(options_of(other)[name]))
    default = changes.pop("default", known.pop("default"))
    del known["name"], known["annotation"]
    return field(default=default, metadata={**known, **changes})


@functools.cache
def options_of(command: type) -> dict[str, Option]:
    """The options of a command by the name of the argument."""
    return {one.name: _read(one, command) for one in fields(command)}


def _read(one: Field[Any], command: type) -> Option:
    owner = next(vars(kind) for kind in command.__mro__ if one.name in vars(kind).get("__annotations__", {}))
    known, modifier = dict(one.metadata), owner.get("MODIFIER", "")
    known["flags"] = tuple(flag or f"--{one.name.replace('_', '-')}" for flag in known["flags"])
    known.setdefault("group", owner.get("GROUP", ""))
    recipe = known.get("recipe", one.name if modifier else "")
    known["recipe"] = recipe if "." in recipe or not recipe else f"{modifier}.{recipe}"
    return Option(one.name, one.default, str(one.type), **known)


# -- which zeros

ZEROS, LEVELED, WEIGHTS, HOLDS = "which zeros", "levels of a device", "which weights", "what has to hold"
TRAINING, SAFETY, IMAGES = "training", "safety and output", "a folder of images"
SCHEDULE = "masks of a schedule, at one moment of it (the end, where none is said)"

IN_MEMORY = "without it `Result.model` has it in memory"
_PATTERNS = ("unstructured", "alive", "filter", "channel")
_SCORES = (
    ". `squared`: whole filters and blocks by their 2-norm. For `--pattern filter` alone: `fpgm` (mean distance of a "
    "filter to all others, the most redundant first: `fpgm:distance=l1`, `l2` or `cosine`) and `nuclear` (how much the "
    "nuclear norm of the weight drops without a filter). Options follow a colon: `random:seed=3`"
)
_ALLOCATIONS = (
    ". `uniform`: the same for each. `global`: the least important of all weights together; each keeps at least one "
    "unit. `erk`: Erdős–Rényi-kernel, larger weights get sparser. These two work with `unstructured` and `block`. "
    "`energy`: by the energy that goes with the smallest numbers, sparser the deeper a layer lies; with "
    "`unstructured` and `alive`, see [targets/amba.md](targets/amba.md)"
)
_NAMED = "the size of a dynamic dimension, such as `--dim height=224`, or `--dim x.2=224` for one without a name"


@dataclass(frozen=True)
class SparsityOptions:
    """Which zeros, how many, and of which weights: what `prune`, `plan`, `insert_masks` and `finetune` share."""

    GROUP: ClassVar[str] = ZEROS
    MODIFIER: ClassVar[str] = "pruning"

    pattern: str | None = option(
        None,
        "the layout of the zeros: `2:4`, any `N:M`, `N:M:transposable`, `unstructured`, `alive`, `block:RxC`, "
        "`tile:RxC`, `filter` or `channel`",
        "2:4",
        more=". `N:M` up to M = 255: N of every M weights in a row along the reduction axis are kept. "
        "`2:4:transposable`, any `N:M:transposable`: N in each row and each column of M x M blocks, so that the "
        "transpose is N:M, too; the best such mask, or with `:transposable-greedy` that of the largest weights first. "
        "`unstructured`: any element. `alive`: any, but every output keeps its largest. `block:RxC`: blocks of R "
        "outputs by C inputs. `tile:RxC`: the same, and smaller blocks at the edges. `filter`: whole outputs. "
        "`channel`: whole inputs",
        values=_PATTERNS,
    )
    target: str | None = option(
        None,
        "a device instead of a pattern: `ampere` or `ampere:PROFILE`; `amba` or `amba:CHIP`; `vnni`",
        "ampere",
        more=". What the device cannot use stays dense. See [targets/ampere.md](targets/ampere.md), "
        "[targets/amba.md](targets/amba.md) and [targets/vnni.md](targets/vnni.md)",
        values=("ampere", "amba", "vnni"),
    )
    sparsity: float | str | None = option(
        None,
        "the share that goes, such as `0.8` or `80%`; N:M fixes its own",
        "0.8",
        more=". It lies from 0 to below 1, and every other pattern needs it",
        metavar="SHARE",
    )
    allocation: str | None = option(
        None,
        "how the share is spread over the weights: `uniform` (default), `global`, `erk` or `energy`",
        "erk",
        more=_ALLOCATIONS,
        values=("uniform", "global", "erk", "energy"),
    )
    score: str | None = option(
        None,
        "what goes first: `magnitude` (default), `random`, `squared`, `fpgm` or `nuclear`",
        "magnitude",
        more=_SCORES,
        values=("magnitude", "random", "squared", "fpgm", "nuclear"),
    )
    include: Names = option(
        (),
        "only these: tensor or layer names, globs, `re:PATTERN`, operator kinds",
        "head",
        more=". Each entry is the [name of a tensor, node or layer](#names-of-layers), an operator such as `Conv`, a "
        "glob such as `encoder.*`, or `re:` and a regular expression; several one after the other: "
        "`--include head point`",
        group=WEIGHTS,
        metavar="X",
        values=_ANY,
    )
    exclude: Names = option((), "all but these, in the same forms", "stem", group=WEIGHTS, metavar="X", values=_ANY)
    allow: Names = option(
        (),
        "prune what stays dense by default: `embedding`, `tied-embedding`, `stem`, `depthwise`, `small`, `basis`, "
        "`output`",
        "stem,output",
        more="; several with commas or spaces",
        group=WEIGHTS,
        metavar="WORD,...",
        values=("embedding", "tied-embedding", "stem", "depthwise", "small", "basis", "output"),
    )
    tie_equal: bool | None = option(
        None,
        "weights that are equal, or equal up to a scale for each output, are one: the same zeros, counted once",
        more=". Exporters copy layers that several levels of a detector share, and fold a normalization of its own "
        "into each copy; `finetune` trains them as one",
        group=WEIGHTS,
    )
    seed: int | None = option(None, "for scores that draw numbers (default 0)", "1", recipe="training.seed")
    level: float | str | None = option(
        None,
        "the network sparsity in per cent, such as `70`, of a target that knows levels: `amba`",
        "70",
        more=". `--sparsity 0.7` says the same",
        group=LEVELED,
        recipe="",
        metavar="N",
    )

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> SparsityOptions:
        """Those of the arguments of a call."""
        return cls(**{one.name: given[one.name] for one in fields(cls)})


@declared
class InspectOptions:
    """Of `inspect`."""

    dims: Mapping[str, int] | None = option(
        None,
        _NAMED + ", for multiply-accumulates",
        "height=224",
        flag="--dim",
        more=", several with commas between them. Where a size is "
        "not known they are left out, and it is said which `--dim` would give them",
        metavar="NAME=SIZE",
    )


@declared
class PlannedOptions(SparsityOptions):
    """What `plan` shares with those that do what it says."""

    output: Path | None = option(
        None, "the YAML file to write", "plan.yaml", short="-o", python="without it nothing is written", metavar="OUT"
    )
    dims: Mapping[str, int] | None = option(
        None,
        _NAMED + "; multiply-accumulates need it, and the allocation `energy` asks for it",
        "height=224",
        flag="--dim",
        more=", several with commas between them. A name that no "
        "input has is an error, as in every command; where a size is not known, "
        "multiply-accumulates are left out",
        group=LEVELED,
        metavar="NAME=SIZE",
    )
    plan: Path | None = option(
        None,
        "a plan written by `onnxsparse plan`, perhaps edited",
        "plan.yaml",
        more="; it takes the place of the options above and of those below",
        group=ZEROS,
        metavar="PLAN.yaml",
    )
    masks: Masks | None = option(
        None,
        "masks of your own: an `.npz` with one array for each tensor name, non-zero = keep",
        "masks.npz",
        python="or a mapping of such arrays",
        more=", of the shape of the weight. With `--pattern` they have to fit it. See [masks.md](masks.md)",
        group=ZEROS,
        metavar="MASKS.npz",
    )
    overwrite: bool = option(False, "replace the output if it exists")


@declared
class ZerosOptions(PlannedOptions):
    """What `prune`, `insert_masks` and `finetune` share."""

    output: Path | None = option(
        None, "the sparse model to write", "sparse.onnx", short="-o", python=IN_MEMORY, metavar="OUT"
    )
    strict: bool = option(
        False,
        "write nothing, with exit code 1, when a weight, or a part of one, stays dense that you did not exclude, or "
        "when there is nothing to prune",
    )


# -- samples

_BATCH_AXIS = "`INPUT=AXIS`: the axis of the samples where it is not the first (default: the one named as such)"
_STATE = "`INPUT=OUTPUT`: an input that is the output of the step before, in sequences of samples"


@declared
class ImageOptions:
    """How the images of a folder become numbers."""

    GROUP: ClassVar[str] = IMAGES
    resize: str | Sequence[int] | None = option(
        None,
        "`HxW`, to which images are scaled; what is too long on one side is cut off evenly (default: the size that the "
        "model declares)",
        "224x224",
        metavar="HxW",
    )
    mean: str | float | Sequence[float] | None = option(
        None,
        "what is taken from pixels between 0 and 1, a number or one for each channel",
        "0.485,0.456,0.406",
        metavar="X,...",
    )
    std: str | float | Sequence[float] | None = option(
        None, "what they are divided by then, in the same form", "0.229,0.224,0.225", metavar="X,..."
    )
    layout: str | None = option(
        None, "`NCHW` or `NHWC` (default: by the model)", "NHWC", values=("NCHW", "NHWC"), metavar="LAYOUT"
    )


@declared
class DataOptions:
    """Samples to train on, and to measure on."""

    GROUP: ClassVar[str] = "data"
    data: Any = option(
        REQUIRED,
        "an `.npz` with one array for each input, first axis = samples; a folder of such files, or of images; an "
        "`.npy` for each input; or `module:function`, a function that yields dictionaries of arrays",
        "samples.npz",
        python="or a mapping of arrays, or such a function",
        metavar="DATA",
    )
    labels: str | None = option(
        None,
        "the array of the labels (default: `labels`, `label`, `targets`, `target` or `y`)",
        "classes",
        metavar="NAME",
    )
    batch_axis: Axes = option(
        None,
        _BATCH_AXIS,
        "state=1",
        more=", such as `--batch-axis state=1` for `[2, batch, 128]`; may be given several times. See "
        "[how axes are named](finetune.md#samples-along-another-axis)",
        metavar="INPUT=AXIS",
    )
    state: Axes = option(
        None,
        _STATE,
        "state=stateN",
        more=", such as `--state state=stateN`: see [sequences](finetune.md#sequences)",
        metavar="INPUT=OUTPUT",
    )
    until: Names | None = option(
        None,
        "train and measure up to these tensors, and deliver the whole file; `auto`: the last ones that weights make, "
        "before boxes are decoded and chosen",
        "auto",
        more=": see [detectors](finetune.md#detectors-with-their-post-processing)",
        metavar="auto|NAME,...",
        values=("auto",),
    )
    eval_data: Any = option(
        None,
        "arrays to measure on before, during and after",
        "held_out.npz",
        more=": the dense model, the pruned one, after every epoch, and the result; without them these three are "
        "measured on the samples held out, by the accuracy of the labels or the distance",
        metavar="DATA",
    )
    metrics: Sequence[str | Callable[..., Any]] = option(
        (),
        "what is measured: `loss`, `accuracy`, `top-5`, `r2`, `mae`, `mse`, `agreement`, `distance`, or "
        "`module:function`, called as f(outputs, batch) for each batch (default: by the data)",
        "accuracy",
        python="or such a function",
        flag="--metric",
        more="; `metrics=[...]` from Python, functions too: see [finetune.md](finetune.md)",
        metavar="M",
        values=("loss", "accuracy", "top-5", "r2", "mae", "mse", "agreement", "distance"),
    )


CALIBRATED = "masks and numbers from samples"
SAMPLES_IN_PYTHON = (
    "or a mapping of arrays, such a function, a loader of batches, or a CalibrationDataReader of onnxruntime or "
    "polygraphy"
)


@dataclass(frozen=True)
class CalibrationOptions(ImageOptions):
    """Samples that decide which zeros, and what the kept weights become: of `prune`, `plan` and `insert_masks`."""

    GROUP: ClassVar[str] = CALIBRATED

    data: Any = like(
        DataOptions,
        "data",
        default=None,
        meaning="samples without labels, a few hundred: masks by what comes into each layer, and kept weights refitted "
        "to what the dense model gives. An `.npz` with one array for each input, first axis = samples; a folder of "
        "such files, or of images; an `.npy` for each input; or `module:function`, a function that yields "
        "dictionaries of arrays",
        python=SAMPLES_IN_PYTHON,
        more=". See [calibration.md](calibration.md)",
        group=CALIBRATED,
    )
    samples: int | None = option(
        None,
        "how many samples (default 256): of more, those that `--seed` draws",
        "512",
        more="; of a function that yields them, the first",
    )
    score: str | None = like(
        SparsityOptions,
        "score",
        meaning="what goes first: `magnitude` (default), `random`, `squared`, `fpgm` or `nuclear`; with samples `obs` "
        "(default then), `wanda` or `ria`, too",
        more=_SCORES + ". With samples, see [calibration.md](calibration.md#scores): `obs`: by what the "
        "outputs lose where the other weights make up for it. `wanda`: by the size of the weight and of what comes in. "
        "`ria`: the same, relative to the row and the column",
        values=("magnitude", "random", "squared", "fpgm", "nuclear", "obs", "wanda", "ria"),
    )
    solver: str | None = option(
        None,
        "with samples, what the kept weights become: `least-squares` (default), `obs`, `bias` or `zero`",
        "zero",
        more=". `least-squares`: those that come nearest to the dense outputs. `obs`: SparseGPT's updates, column by "
        "column. `bias`: only biases change. `zero`: nothing does",
        values=("least-squares", "obs", "bias", "zero"),
    )
    allocation: str | None = like(
        SparsityOptions,
        "allocation",
        meaning="how the share is spread over the weights: `uniform` (default), `global`, `erk` or `energy`; with "
        "samples `sensitivity` (default then)",
        more=_ALLOCATIONS + ". `sensitivity`: the levels of all layers that together cost the outputs least, "
        "see [calibration.md](calibration.md#levels)",
        values=("uniform", "global", "erk", "energy", "sensitivity"),
    )
    seed: int | None = like(
        SparsityOptions, "seed", meaning="for scores that draw numbers, and for which samples are taken (default 0)"
    )
    sensitivity: str | None = option(
        None,
        "with samples, how it is told what matters to the outputs: `gradients` (default) or `measured`",
        "measured",
        more=". `gradients` need an engine: the extra `ort` or `torch`. `measured`: layer by layer, by how far the "
        "outputs move; slower, and a little worse",
        values=("gradients", "measured"),
    )
    engine: str = option(
        "auto",
        "what takes gradients: `ort`, `torch`, or `auto` (default): the first that is installed and takes the model",
        "torch",
        values=("auto", "ort", "torch"),
    )
    budget: str | None = option(
        None,
        "what the share is of, with the allocation `sensitivity`: `params` (default), `bytes` or `macs`",
        "macs",
        more=". `macs`: multiply-accumulates, so that layers at high resolution get sparser",
        values=("params", "bytes", "macs"),
    )
    max_loss: float | str | None = option(
        None,
        "find the sparsity: the most zeros, or with N:M the fewest dense layers, by which no more than this is lost: "
        "points of the metric, `0.5`, or a share of the dense model's, `1%`",
        "1%",
        more=". Measured on `--eval-data`, or on an eighth of the samples, which calibration does not see then: see "
        "[calibration.md](calibration.md#the-most-that-may-be-lost)",
        metavar="X",
    )
    add_bias: bool = option(
        False, "a layer without a bias may get one, which is a new tensor in the file; the report lists each"
    )
    joint_steps: int | None = option(
        None,
        "how many steps all refitted layers move together at the end, towards the outputs of the dense model "
        "(default: 1500 for small networks, fewer or none for large ones; 0: none)",
        "300",
        more=". By `--solver least-squares`, on samples mixed from yours: see "
        "[calibration.md](calibration.md#the-joint-refit)",
    )
    labels: str | None = like(
        DataOptions,
        "labels",
        meaning="the array of the labels, where anything is measured (default: `labels`, `label`, `targets`, `target` "
        "or `y`)",
        group=CALIBRATED,
    )
    eval_data: Any = like(
        DataOptions,
        "eval_data",
        meaning="arrays to measure the dense model and the sparse one on",
        more="",
        group=CALIBRATED,
    )
    metrics: Sequence[str | Callable[..., Any]] = like(
        DataOptions,
        "metrics",
        meaning="what is measured, the first for `--max-loss`: `accuracy`, `top-5`, `r2`, `mae`, `mse`, `agreement`, "
        "`distance`, or `module:function`, called as f(outputs, batch) for each batch (default: by the data)",
        more="",
        group=CALIBRATED,
    )
    batch_axis: Axes = like(DataOptions, "batch_axis", group=CALIBRATED)
    state: Axes = like(DataOptions, "state", group=CALIBRATED)
    workers: int | None = option(
        None, "how many processes work side by side (default: one for each core); the bytes do not depend on it", "2"
    )
    checkpoint: Path | None = option(
        None, "save what is found of the samples in this folder, layer by layer", "run", metavar="DIR"
    )
    resume: bool = option(False, "go on with the calibration in `--checkpoint`, to the same result")

    @classmethod
    def given(cls, arguments: Mapping[str, Any]) -> CalibrationOptions:
        """Those of the arguments of a call."""
        return cls(**{one.name: arguments[one.name] for one in fields(cls)})


@declared
class PlanOptions(CalibrationOptions, PlannedOptions):
    """Of `plan`."""


@declared
class AnalyzeOptions(ImageOptions):
    """Of `analyze`."""

    GROUP: ClassVar[str] = ""
    data: Any = like(
        CalibrationOptions,
        "data",
        default=REQUIRED,
        meaning="samples, a few hundred, with or without labels, as `prune` takes them",
        python=SAMPLES_IN_PYTHON,
        more="",
        group="data",
    )
    samples: int | None = like(CalibrationOptions, "samples", group="data")
    html: Path | None = option(
        None, "write the report as a page that needs no other file", "report.html", metavar="FILE"
    )
    pattern: str | None = like(
        SparsityOptions,
        "pattern",
        meaning="the pattern of the zeros: `unstructured` (default), or another that takes a sparsity; or an N:M to be "
        "looked at beside the levels, in the place of `2:4`",
        example="block:1x4",
        more="",
    )
    include: Names = like(SparsityOptions, "include")
    exclude: Names = like(SparsityOptions, "exclude")
    allow: Names = like(SparsityOptions, "allow")
    seed: int | None = option(None, "for which samples are taken (default 0)", "1", group="data")
    sensitivity: str | None = like(
        CalibrationOptions,
        "sensitivity",
        meaning="how it is told what matters to the outputs: `gradients` (default) or `measured`",
    )
    engine: str = like(CalibrationOptions, "engine")
    labels: str | None = like(CalibrationOptions, "labels", group="data")
    eval_data: Any = like(
        CalibrationOptions,
        "eval_data",
        meaning="arrays to measure on what each weight loses at each "
        "level (default: an eighth of the samples, where they have labels)",
        group="data",
    )
    metrics: Sequence[str | Callable[..., Any]] = like(
        CalibrationOptions,
        "metrics",
        meaning="what is measured: "
        "`accuracy`, `top-5`, `r2`, `mae`, `mse`, `agreement`, `distance`, or `module:function`, called as f(outputs, "
        "batch) for each batch (default: by the data)",
        group="data",
    )
    batch_axis: Axes = like(CalibrationOptions, "batch_axis", group="data")
    state: Axes = like(CalibrationOptions, "state", group="data")
    dims: Mapping[str, int] | None = like(
        PlannedOptions, "dims", meaning=_NAMED + ", for multiply-accumulates", more="", group="data"
    )
    overwrite: bool = option(False, "replace the page of `--html` if it exists")


# -- in which order the channels stand

ORDER = "the order of channels"


@declared
class SearchOptions:
    """How an order of channels is searched."""

    GROUP: ClassVar[str] = ORDER
    scores: Masks | None = option(
        None,
        "scores of your own for the search: an `.npz` with one array for each weight that is pruned, by its name, of "
        "its shape, not negative (default: magnitudes)",
        "scores.npz",
        python="or a mapping of such arrays",
        metavar="SCORES.npz",
    )
    effort: str = option(
        "quick", "how long is searched: `quick` (default) or `thorough`", "thorough", values=("quick", "thorough")
    )
    dims: Mapping[str, int] | None = option(
        None,
        _NAMED + ", for the analysis and the proof (default: chosen by what the model needs)",
        "height=224",
        flag="--dim",
        metavar="NAME=SIZE",
    )
    unproven: bool = option(
        False,
        "go on without the proof in the runtime; the record says so",
        more=". Only where there is no runtime that runs the model: a permutation that is not proven may be wrong",
    )


@declared
class PruneOptions(CalibrationOptions, ZerosOptions):
    """Of `prune`."""

    permute: bool = option(
        False,
        "put the channels in a better order first, so that the pattern N:M costs less",
        more=": what `onnxsparse permute` does, see [permute.md](permute.md)",
        group=ORDER,
    )
    scores: Masks | None = like(
        SearchOptions,
        "scores",
        meaning="scores of your own, for the order of the channels and for the masks: an `.npz` with one array for "
        "each weight that is pruned, by its name, of its shape, not negative",
        group=ORDER,
    )
    effort: str = like(SearchOptions, "effort", group=ORDER)
    unproven: bool = like(SearchOptions, "unproven", group=ORDER)


@declared
class ChannelsOptions:
    """Of `channels`."""

    dims: Mapping[str, int] | None = option(
        None,
        _NAMED + " (default: chosen by what the model needs)",
        "height=224",
        flag="--dim",
        more=", several with commas between them",
        metavar="NAME=SIZE",
    )


@declared
class PermuteOptions(SearchOptions):
    """Of `permute`."""

    output: Path | None = option(
        None, "the permuted model to write", "permuted.onnx", short="-o", python=IN_MEMORY, metavar="OUT"
    )
    pattern: str | None = option(
        None, "the pattern that is to cost less: `2:4` (default) or any `N:M`", "2:4", group=ZEROS
    )
    target: str | None = like(
        SparsityOptions,
        "target",
        meaning="a device instead of a pattern: `ampere` or `ampere:PROFILE`",
        more=". What it cannot use does not count",
        group=ZEROS,
    )
    include: Names = like(SparsityOptions, "include")
    exclude: Names = like(SparsityOptions, "exclude")
    allow: Names = like(SparsityOptions, "allow")
    seed: int = option(0, "of the search, and of the inputs of the proof (default 0)", "1")
    apply: Any = option(
        None,
        "the order of another model, in place of a search: a file that `--save-permutation` wrote, or a permuted model",
        "permutation.json",
        more=": for a teacher, another checkpoint, a newer export. See "
        "[permute.md](permute.md#the-same-order-in-another-file)",
        metavar="PERMUTATION",
    )
    save_permutation: Path | None = option(
        None,
        "also write what moved as JSON, from the original order to the present one",
        "permutation.json",
        metavar="FILE",
    )
    overwrite: bool = option(False, "replace the output if it exists")


@declared
class MaskOptions(CalibrationOptions, ZerosOptions):
    """Of `insert_masks`, the command `mask`."""

    output: Path | None = option(
        None, "the masked model to write", "masked.onnx", short="-o", python=IN_MEMORY, metavar="OUT"
    )
    config: Any = option(
        None,
        "a configuration of MSBench, with mask_generator, fake_sparse and scheduler: the masks that it has at a moment",
        "sparsity.yaml",
        python="a path or a mapping",
        more=". See [msbench.md](msbench.md#masks-without-training). `--level` and `--target amba:CHIP` go with it",
        group=SCHEDULE,
        metavar="SPARSITY.yaml",
    )
    iteration: int | None = option(
        None,
        "before which iteration of `--config`; without it and without `--level`, at the end of the schedule",
        "500",
        group=SCHEDULE,
        metavar="N",
    )
    expected: bool = option(
        False, "of masks that are drawn: the most probable numbers, in place of a draw", group=SCHEDULE
    )
    recipe: Any = option(
        None,
        "what a recipe of SparseML has masked at a moment",
        "recipe.md",
        python="a path or a Recipe",
        more=". See [recipes.md](recipes.md#masks-without-training)",
        group=SCHEDULE,
        metavar="RECIPE.md",
    )
    epoch: float | None = option(
        None,
        "before the step at which epoch of `--recipe`; without it, at the end of the recipe",
        "1.5",
        group=SCHEDULE,
        metavar="E",
    )
    steps_per_epoch: int | None = option(
        None,
        "the steps by which the recipe's clock goes; without it, its times are met exactly",
        "100",
        group=SCHEDULE,
        metavar="N",
    )
    form: str = option(
        "mul",
        "`mul` (default): a mask of the weight's type. `bool` or `uint8`: a small mask and a Cast. `where`: "
        "Where(mask, weight, 0)",
        "where",
        more=". See [masks.md](masks.md)",
        values=("mul", "bool", "uint8", "where"),
    )


@declared
class VerifyOptions:
    """Of `verify`."""

    pattern: str | None = like(
        SparsityOptions,
        "pattern",
        meaning="every weight that this pattern (`2:4`, any `N:M`, `unstructured`, `block:RxC`, `filter`, `channel`, "
        "...) would prune has to hold it",
        more="",
        group=HOLDS,
    )
    target: str | None = like(
        SparsityOptions,
        "target",
        meaning="the same for the pattern of a device: `ampere` or `ampere:PROFILE`; `amba` or `amba:CHIP`; `vnni`",
        more=". What the device cannot use is listed as unchecked, with the reason",
        group=HOLDS,
    )
    sparsity: float | str | None = like(
        SparsityOptions,
        "sparsity",
        meaning="the level, where the pattern takes one; without it each weight is held to the level that is recorded "
        "for it",
        more="",
        group=HOLDS,
    )
    plan: Path | None = like(
        PlanOptions,
        "plan",
        meaning="each weight has to have what this plan, written by `onnxsparse plan`, promised",
        more="",
        group=HOLDS,
    )
    include: Names = like(SparsityOptions, "include")
    exclude: Names = like(SparsityOptions, "exclude")
    allow: Names = like(SparsityOptions, "allow")
    level: float | str | None = like(
        SparsityOptions,
        "level",
        meaning="the network sparsity in per cent that a target such as `amba` is held to (default: the recorded one)",
        more="",
    )
    dims: Mapping[str, int] | None = like(PlanOptions, "dims", meaning=_NAMED, more="")
    strict: bool = option(
        False,
        "it holds only if every weight, and every part of one, was checked that you did not exclude",
        more="; else exit code 1",
    )
    full: bool = option(
        False,
        "evaluate all numbers of values over 64 MB that come to their node through arithmetic, not samples",
        more='; without it slabs of them, and the verdict says "sampled"',
    )


@declared
class FoldOptions(VerifyOptions):
    """Of `fold_masks`, the command `fold`."""

    output: Path | None = option(
        None, "the model without masks to write", "folded.onnx", short="-o", python=IN_MEMORY, metavar="OUT"
    )
    discard: bool = option(
        False,
        "take the masks out and leave the weights as they are",
        more=". Nothing is checked then, and a rule beside it is an error",
    )
    strict: bool = option(
        False,
        "it holds only if every weight, and every part of one, was checked that you did not exclude, no mask stays in "
        "the graph, and there is something to check against",
        more="; else exit code 1",
    )
    overwrite: bool = option(False, "replace the output if it exists")


# -- training

_OPTIMIZERS = ("relative", "adamw", "adam", "sgd", "nesterov", "ort-adamw")
_LOSSES = ("distill", "kl", "cross-entropy", "mse", "bce", "l1")


@declared
class MaskUpdateOptions:
    """How the masks move while it is trained."""

    GROUP: ClassVar[str] = "how the masks move"
    MODIFIER: ClassVar[str] = "pruning"
    schedule: str | None = option(
        None,
        "how the level rises: `cubic` (default), `linear`, `one-shot`, ... (see `onnxsparse list schedules`)",
        "linear",
        more=". N:M and given masks are set at once",
        values=("cubic", "linear", "one-shot"),
    )
    init: str | None = option(
        None,
        "what training starts from: `calibrated` (default; `plain` beside a recipe): masks and refitted numbers from "
        "1,024 of the samples, the masks stand still; or `plain`: the dense numbers",
        "plain",
        more=". Where the masks move, are given or cannot be calibrated, it starts plainly, which is said. See "
        "[finetune.md](finetune.md#the-start)",
        values=("calibrated", "plain"),
    )
    start_sparsity: float | None = option(None, "the share of the goal to start from (default 0)", "0.3")
    prune_begin: float | None = option(
        None, "when the level starts to rise, as a share of the run (default 0)", "0.1", recipe="begin"
    )
    prune_end: float | None = option(
        None, "when the goal is reached, exactly; the masks stand still from there (default 0.6)", "0.8", recipe="end"
    )
    updates: int | None = option(None, "how often the masks move in between (default 60)", "20")
    regrow: str | None = option(
        None,
        "let places come back: `none` (default), `weights` (by the numbers that masked places had) or `gradient` (by "
        "the dense gradient)",
        "gradient",
        values=("none", "weights", "gradient"),
    )
    sparser: str | None = option(
        None,
        "what stands in for a weight until then: `mask` (default), or one that learns which places stay (see "
        "`onnxsparse list sparsers`)",
        "probabilistic",
        values=("mask",),
    )


@declared
class LossOptions:
    """What training minimizes."""

    GROUP: ClassVar[str] = "what is made small"
    MODIFIER: ClassVar[str] = "objective"
    loss: str | None = option(
        None,
        "`distill` (default) or `kl` from the dense model; `cross-entropy`, `mse`, `bce` or `l1` against labels",
        "cross-entropy",
        more=". `distill`: the distance to the dense model's outputs and to what lies before their softmax or sigmoid. "
        "`kl`: the divergence from its softmax, along the axis of the classes or of `kl:axis=1`. "
        "`cross-entropy:smoothing=0.1`: with label smoothing, as in torch's `CrossEntropyLoss(label_smoothing=0.1)`",
        values=_LOSSES,
    )
    hardness: float | None = option(
        None,
        "the share of the distillation beside a loss against labels (default 0.7; 0 beside a recipe that sets learning "
        "rates or has a DistillationModifier)",
        "0.5",
    )
    temperature: float | None = option(None, "how much `kl` softens both models (default 2)", "4")
    distillation: str | None = option(
        None, "the distillation beside labels: `distill` (default) or `kl`", "kl", values=("distill", "kl")
    )
    loss_output: str | None = option(
        None,
        "the output that the labels belong to (default: the first float one)",
        "logits",
        values=_ANY,
        recipe="output",
    )


HOW_ROUNDED = "what becomes integers, and how"


@declared
class RoundingOptions:
    """Training with rounded numbers."""

    GROUP: ClassVar[str] = HOW_ROUNDED
    MODIFIER: ClassVar[str] = "quantization"
    quantize: str | None = option(
        None,
        "`int8`: train the last part of the run with rounded weights and values, and deliver integers",
        "int8",
        more=". Every zero is exactly the zero point. Without `--pattern` and the like the zeros of the model are "
        "held. `--target ampere` rounds values symmetrically, as TensorRT does; see [finetune.md](finetune.md#int8)",
        values=("int8",),
        recipe="scheme",
    )
    learn_scales: bool | None = option(
        None, "with `--quantize`: scales train along, in place of following the numbers that they round"
    )


@declared
class TrainOptions:
    """How long, in which steps, by which optimizer."""

    GROUP: ClassVar[str] = TRAINING
    MODIFIER: ClassVar[str] = "training"
    epochs: float | None = option(
        None,
        "how long (default 3, and at least 1500 steps)",
        "10",
        more="; beside a [recipe](recipes.md) that says it, all of its epochs are scaled to that",
    )
    steps: int | None = option(None, "how long, in optimizer steps", "2000")
    steps_per_epoch: int | None = option(None, "what counts as an epoch, where the data does not say it", "100")
    batch_size: int | None = option(
        None,
        "samples at a time, of all processes together (default 32)",
        "64",
        more=", at most as many as there are",
        recipe="batch",
    )
    accumulate: int | None = option(
        None,
        "so many batches make one step (default 1)",
        "4",
        more=": their gradients add up, and the result is that of one batch of all of them. Schedules, `--steps` and "
        "`--warm-up` count such steps",
    )
    precision: str | None = option(
        None,
        "`float32` (default); `bfloat16` or `float16` in torch, where that is enough",
        "bfloat16",
        more=": numbers are multiplied in half precision, and weights stay float32. With `float16` losses are scaled; "
        "a step that overflows is repeated with a smaller scale",
        values=("float32", "bfloat16", "float16"),
    )
    optimizer: str | Callable[[Any], Any] | None = option(
        None,
        "`relative` (default), `adamw`, `adam`, `sgd`, `nesterov`, with options such as `sgd:momentum=0.8`; "
        "`ort-adamw`",
        "adamw",
        python="in torch also a function from parameters to an optimizer",
        more=". `relative`: steps relative to the scale of each tensor. `ort-adamw`: the one inside "
        "onnxruntime-training (`--engine ort`), which decays biases too and cannot forget pruned places",
        values=_OPTIMIZERS,
    )
    lr: float | None = option(
        None, "the highest learning rate (default: by how much is pruned)", "0.001", recipe="rate"
    )
    lr_schedule: str | None = option(
        None,
        "`cosine` (default), `constant`, `linear`, `step`, `multi-step` or `exponential`",
        "linear",
        values=("cosine", "constant", "linear", "step", "multi-step", "exponential"),
        recipe="rate_schedule",
    )
    warm_up: float | None = option(
        None,
        "a share of the run, or a number of steps (default 0.05, and at least 10 steps where the run has 50 or more)",
        "0.1",
    )
    weight_decay: float | None = option(None, "how much weights decay (default 0); biases never do", "0.01")
    clip: float | None = option(None, "the longest gradient, as a 2-norm over all weights (default: any)", "1.0")
    train_bn: bool | None = option(None, "update the statistics of batch normalization (default: frozen)")


@declared
class RunOptions:
    """Which engine runs it, and what it leaves behind."""

    GROUP: ClassVar[str] = TRAINING
    lr_scheduler: Callable[[Any], Any] | None = option(
        None, "in torch a function from your optimizer to a scheduler of its rates", "make_scheduler", flag=None
    )
    recipe: Any = option(
        None,
        "all of that from a file, as it is saved beside the output, or a recipe of SparseML",
        "recipe.yaml",
        python="a path or a Recipe",
        more=". `-v` prints it. A [recipe](recipes.md) of SparseML says what happens in which epoch; `--epochs` scales "
        "all of that, and `--steps`, and beside its rates `--lr`, `--lr-schedule` and `--warm-up`, are refused then",
        metavar="R.yaml",
    )
    engine: str = option(
        "auto",
        "`ort`: onnxruntime-training; `torch`; or `auto` (default): the first, or torch where that is not installed, "
        "does not take the model, or lacks what is asked for",
        "torch",
        more=". Which one it was, and why, is said. Each comes with the extra of its name",
        values=("auto", "ort", "torch"),
    )
    device: str | None = option(
        None,
        "in torch: `cpu` (default), `cuda`, `cuda:1`, `mps` or whatever torch knows",
        "cuda",
        more="; of `cuda` each process takes its own",
        metavar="D",
        values=("cpu", "cuda", "mps"),
    )
    checks: int | None = option(
        None, "how often the best state is looked for (default 20)", "50", flag=None, recipe="keep-best.checks"
    )
    retries: int | None = option(
        None,
        "how often it begins again with a lower rate, where training did not help (default 3)",
        "0",
        flag=None,
        recipe="keep-best.retries",
    )
    watch: Callable[[dict[str, Any]], None] | None = option(
        None, "called with every row of the history", "print", flag=None
    )


@declared
class CheckpointOptions:
    """The state of a run, saved and checked."""

    GROUP: ClassVar[str] = SAFETY
    checkpoint: Path | None = option(
        None,
        "save the state of the run in this folder, again and again",
        "run",
        more=": at twenty places of it, every minute, and when it is interrupted or terminated",
        metavar="DIR",
    )
    resume: bool = option(False, "go on with the run in `--checkpoint`, to the same result as if it had not stopped")
    check: bool = option(
        False,
        "prove every gradient of the training graph against finite differences",
        more=", and stop: 0 = all right, 1 = some are wrong. `--data` is enough for it; `--json` takes "
        "[its report](json.md)",
    )


@declared
class FinetuneOptions(
    CheckpointOptions,
    RunOptions,
    TrainOptions,
    RoundingOptions,
    LossOptions,
    MaskUpdateOptions,
    DataOptions,
    ImageOptions,
    ZerosOptions,
):
    """Of `finetune`: those of `prune`, data, and how it is trained."""

    GROUP: ClassVar[str] = SAFETY
    output: Path | None = option(
        None,
        "the sparse, trained model to write",
        "sparse.onnx",
        short="-o",
        python=IN_MEMORY,
        more="; beside `sparse.onnx` come `sparse.recipe.yaml`, `sparse.history.json` and `sparse.history.csv`",
        metavar="OUT",
    )
    overwrite: bool = option(False, "replace the output if it exists")
    strict: bool = option(
        False,
        "write nothing, with exit code 1, when a weight stays dense that you did not exclude, or no training was "
        "better than pruning alone",
    )
    allocation: str | None = like(
        SparsityOptions,
        "allocation",
        meaning="how the share is spread over the weights: `sensitivity` (default here, from a calibrated start), "
        "`erk` (default here, from a plain one), `uniform` or `global`",
        more="",
    )
    seed: int | None = like(
        SparsityOptions, "seed", meaning="for scores that draw numbers, and for the order of the samples (default 0)"
    )


# -- integers


@declared
class QuantizeOptions(ImageOptions):
    """Of `quantize`."""

    output: Path | None = option(
        None, "the quantized model to write", "int8.onnx", short="-o", python=IN_MEMORY, metavar="OUT"
    )
    data: Any = like(
        DataOptions,
        "data",
        default=None,
        meaning="samples, as the model is fed: an `.npz` with one array for each input, first axis = samples; a folder "
        "of such files, or of images; an `.npy` for each input; or `module:function`, a function that yields "
        "dictionaries of arrays",
        python="or a mapping of arrays, such a function, or a CalibrationDataReader of onnxruntime",
        more=". A few hundred are enough, and no labels are needed. See [quantize.md](quantize.md#samples)",
    )
    samples: int | None = option(None, "how many samples (default: all)", "256", group="data")
    scheme: str = option(
        "int8",
        "`int8` (default): weights and what flows between layers; `w8` or `w4`: weights alone, in 8 or 4 bits",
        "w4",
        more=", for which no samples are needed. See [quantize.md](quantize.md)",
        group=HOW_ROUNDED,
        values=("int8", "w8", "w4"),
    )
    dynamic: bool = option(
        False,
        "round what goes into products by the range that it has in each run, without samples: for transformers on CPUs",
        group=HOW_ROUNDED,
    )
    block: int | None = option(
        None,
        "of `w4` and `w8`: so many neighbours along the inputs have a scale of their own (default: 32 for `w4`, none "
        "for `w8`)",
        "64",
        group=HOW_ROUNDED,
        metavar="N",
    )
    asymmetric: bool = option(
        False, "of `w4` and `w8`: unsigned integers, with a zero point beside each scale", group=HOW_ROUNDED
    )
    target: str | None = option(
        None,
        "a device whose rules hold: `ampere` (TensorRT: symmetric values) or `vnni` (CPUs)",
        "ampere",
        group=HOW_ROUNDED,
        values=("ampere", "vnni"),
    )
    per_tensor: bool = option(
        False, "one scale for each weight, in place of one for each of its outputs", group=HOW_ROUNDED
    )
    observer: str = option(
        "minmax",
        "how the range of a value is found: `minmax` (default), `mse`, `moving-average`, `percentile` or `entropy`",
        "mse",
        more=". `minmax`: all of it. `moving-average`: the ranges of the batches, averaged. `percentile:99.9`: all but "
        "a share of the numbers. `entropy`: the range whose integers are distributed most like the numbers. `mse`: the "
        "one with the least rounding error. See `onnxsparse list observers`",
        group=HOW_ROUNDED,
        values=("minmax", "mse", "moving-average", "percentile", "entropy"),
    )
    reduce_range: bool = option(
        False, "weights of 7 bits, for CPUs without VNNI, where sums of products of 8 bits saturate", group=HOW_ROUNDED
    )
    refine: str | None = option(
        None,
        "what keeps the result near the float model, of `equalize`, `rounding` and `bias`, or `none` (default: "
        "`equalize,bias`; for weights alone `rounding,bias`, if there are samples)",
        "rounding,bias",
        more=". See [quantize.md](quantize.md#refinements)",
        group=HOW_ROUNDED,
        metavar="WORDS",
    )
    scales: Path | None = option(
        None,
        "scales that exist already: of a file with QuantizeLinear and DequantizeLinear, a calibration cache of "
        "TensorRT, or JSON",
        "calibration.cache",
        more="; values that it says nothing of take theirs from `--data`",
        group=HOW_ROUNDED,
        metavar="FILE",
    )
    max_loss: float | str | None = option(
        None,
        "leave the most sensitive layers in float until no more than this is lost: points of the metric, `0.5`, or a "
        "share of the float model's, `1%`",
        "0.5",
        more=". Measured on `--eval-data`, or without it on the samples: see "
        "[quantize.md](quantize.md#the-most-that-may-be-lost)",
        group=HOW_ROUNDED,
        metavar="X",
    )
    include: Names = like(SparsityOptions, "include")
    exclude: Names = like(SparsityOptions, "exclude", meaning="all but these, in the same forms: they stay in float")
    labels: str | None = like(DataOptions, "labels")
    eval_data: Any = like(
        DataOptions, "eval_data", meaning="arrays to measure the float model and the quantized one on", more=""
    )
    metrics: Sequence[str | Callable[..., Any]] = like(
        DataOptions,
        "metrics",
        meaning="what is measured: `accuracy`, `top-5`, `r2`, `mae`, `mse`, `agreement`, `distance`, or "
        "`module:function`, called as f(outputs, batch) for each batch (default: by the data)",
        more="; the first is that of `--max-loss`",
    )
    batch_axis: Axes = like(DataOptions, "batch_axis")
    state: Axes = like(DataOptions, "state")
    dims: Mapping[str, int] | None = like(
        PlanOptions, "dims", meaning=_NAMED + ", for multiply-accumulates", more="", group="data"
    )
    overwrite: bool = option(False, "replace the output if it exists")


@declared
class RecipeText:
    """How a recipe file is read: beside `--recipe`, arguments of `Recipe.load` in Python."""

    variables: str | None = option(
        None,
        "other values of the recipe's variables: `name=value,name=value`, or JSON",
        "sparsity=0.9",
        group=TRAINING,
        metavar="NAME=VALUE,...",
    )
    lenient: bool = option(
        False, "leave out of the recipe what nobody knows or nothing runs yet, and say it", group=TRAINING
    )


@declared
class RecipeOptions:
    """Of the command `recipe`."""

    variables: str | None = like(RecipeText, "variables", group="")
    model: Path | None = option(
        None,
        "the model whose weights the recipe names: each name and each mask has to fit",
        "model.onnx",
        metavar="MODEL",
    )
    data_size: int | None = option(
        None,
        "samples of the training data, of which finetune holds some out; with the batch they make the steps of an "
        "epoch",
        "50000",
    )
    batch_size: int | None = option(None, "samples for one step (default: as the recipe says, or 32)", "64")
    steps_per_epoch: int | None = option(None, "optimizer steps of an epoch", "100")
    optimizer: str | None = option(None, "the optimizer of the run, such as `adam`", "adam", values=_OPTIMIZERS)
    lenient: bool = option(False, "leave out what nobody knows or nothing runs yet; that is a note, no finding")


@declared
class CreateOptions:
    """Of `recipe create`: what a recipe is made by; `onnxsparse.create_recipe` takes the same."""

    GROUP: ClassVar[str] = "recipe create"
    output: Path | None = option(
        None, "the recipe to write (default: `-`, which prints it)", "recipe.yaml", short="-o", metavar="OUT"
    )
    data: Any = option(
        None,
        "the samples to train on, as finetune takes them: their number says how many epochs, and how fast, and 256 of "
        "them how much of each layer goes",
        "samples.npz",
        metavar="DATA",
    )
    pruning: str = option(
        "true",
        "how: `true` (default; by magnitude), `acdc`, `mfac`, `movement`, `obs`, `constant` (the zeros that there "
        "are), or `false`",
        "acdc",
        metavar="WORD",
        values=("true", "false", "acdc", "mfac", "movement", "obs", "constant", "transfer", "sparse-transfer"),
    )
    quantization: bool = option(False, "train in 8 bits in the last epochs")
    distillation: bool = option(False, "let the dense model teach beside the labels", flag="--distill")
    target: str | None = like(
        SparsityOptions,
        "target",
        meaning="the device: `ampere` or `ampere:PROFILE`, which `tensorrt` is, too; `amba` or `amba:CHIP`; `vnni`",
        more=". What it cannot use stays dense",
        values=("ampere", "amba", "tensorrt", "vnni"),
    )
    sparsity: float | str | None = like(
        SparsityOptions, "sparsity", meaning="the share that goes (default 0.8); 2:4 fixes its own", more=""
    )
    epochs: float | None = option(None, "how long it lasts (default: by the number of samples, or 20)", "10")
    lr: float | None = option(None, "the learning rate at the start (default: by the number of steps)", "0.01")
    lr_schedule: str | None = option(
        None,
        "`linear` (default), `cosine` or `cyclic_linear`",
        "cosine",
        values=("linear", "cosine", "cyclic_linear"),
    )
    include: Names = like(SparsityOptions, "include", group="recipe create", more="")
    exclude: Names = like(SparsityOptions, "exclude", group="recipe create")
    allow: Names = like(SparsityOptions, "allow", group="recipe create")
    overwrite: bool = option(False, "replace the output if it exists")


@declared
class LevelsOptions:
    """Of `levels`: those of `finetune` that mean something for every level."""

    data: Any = like(FinetuneOptions, "data")
    output: Path = option(
        REQUIRED,
        "the folder for a file of each level, the table and the picture: a new one, an empty one, or that of a run to "
        "go on with",
        "levels",
        short="-o",
        metavar="OUT",
    )
    levels: str | Sequence[float] = option(
        "30,40,50,60,70,80,90",
        "the levels in per cent, ascending (default `30,40,50,60,70,80,90`)",
        "50,70,90",
        group="levels",
        metavar="N,N,...",
    )
    target: str = like(
        SparsityOptions,
        "target",
        default="amba",
        meaning="`amba` (default) or `amba:CHIP`",
        example="amba:cv22",
        more="; see [targets/amba.md](targets/amba.md)",
        group="levels",
    )
    allocation: str | None = like(
        SparsityOptions, "allocation", meaning="how a level is shared out (default `energy`)", more="", group="levels"
    )
    labels: str | None = like(FinetuneOptions, "labels")
    until: Names | None = like(FinetuneOptions, "until")
    resize: str | Sequence[int] | None = like(ImageOptions, "resize")
    mean: str | float | Sequence[float] | None = like(ImageOptions, "mean")
    std: str | float | Sequence[float] | None = like(ImageOptions, "std")
    layout: str | None = like(ImageOptions, "layout")
    eval_data: Any = like(
        FinetuneOptions,
        "eval_data",
        meaning="arrays to measure each level on, and the dense model (default: the samples held out)",
        more="",
    )
    metrics: Sequence[Any] = like(FinetuneOptions, "metrics")
    epochs: float | None = like(
        FinetuneOptions, "epochs", meaning="how long each level is trained (default 1)", example="2"
    )
    steps: int | None = like(FinetuneOptions, "steps", meaning="how long each level is trained, in optimizer steps")
    dims: Mapping[str, int] | None = like(
        PlanOptions, "dims", meaning=_NAMED + "; asked for where the model does not say it", more="", group="levels"
    )
    include: Names = like(SparsityOptions, "include")
    exclude: Names = like(SparsityOptions, "exclude")
    allow: Names = like(SparsityOptions, "allow")
    tie_equal: bool | None = like(SparsityOptions, "tie_equal")
    init: str | None = like(
        FinetuneOptions,
        "init",
        meaning="what each level starts from: `calibrated` (default; `plain` beside a configuration): masks and "
        "refitted numbers from 1,024 of the samples, for the network of the level before; or `plain`: that network, "
        "its smallest numbers pruned",
        more=". The better of both on the samples held out is taken",
        group="levels",
    )
    engine: str = like(FinetuneOptions, "engine")
    loss: str | None = like(FinetuneOptions, "loss")
    hardness: float | None = like(FinetuneOptions, "hardness")
    temperature: float | None = like(FinetuneOptions, "temperature")
    batch_size: int | None = like(FinetuneOptions, "batch_size", meaning="samples for one step (default 32)", more="")
    optimizer: str | None = like(
        FinetuneOptions,
        "optimizer",
        meaning="`relative` (default), `adamw`, `adam`, `sgd`, `nesterov`, with options such as `sgd:momentum=0.8`",
        python="",
    )
    lr: float | None = like(
        FinetuneOptions, "lr", meaning="the highest learning rate of every level (default: by how much is pruned)"
    )
    lr_schedule: str | None = like(
        FinetuneOptions,
        "lr_schedule",
        meaning="how the rate goes within each level: `cosine` (default), `constant`, `linear`, `step`, ...",
    )
    warm_up: float | None = like(
        FinetuneOptions, "warm_up", meaning="at the beginning of each level: a share of it, or steps (default 0.05)"
    )
    weight_decay: float | None = like(FinetuneOptions, "weight_decay")
    clip: float | None = like(FinetuneOptions, "clip")
    train_bn: bool | None = like(FinetuneOptions, "train_bn")
    seed: int | None = like(FinetuneOptions, "seed", meaning="for the order of the samples (default 0)")
    overwrite: bool = option(False, "begin anew: what an earlier run left in the folder is removed, and nothing else")
    watch: Callable[[dict[str, Any]], None] | None = like(FinetuneOptions, "watch")


@declared
class LevelsText:
    """What the command `levels` reads from a file; from Python its options are arguments."""

    config: Any = option(
        None,
        "an MSBench configuration of AmbaLevelPruneScheduler: its levels, chip, exclusions, limits and iterations",
        "sparsity.yaml",
        more=". Options beside it win. See [msbench.md](msbench.md)",
        group="levels",
        metavar="C.yaml",
    )


@declared
class OneshotOptions(ImageOptions):
    """Of `oneshot`."""

    recipe: Any = option(
        REQUIRED,
        "what is done: a recipe with SparseGPTModifier, WandaPruningModifier, SmoothQuantModifier, AWQModifier, "
        "GPTQModifier or QuantizationModifier",
        "recipe.yaml",
        python="a path, a text of several lines or a Recipe",
        more=". See [recipes.md](recipes.md#at-once)",
        metavar="RECIPE",
    )
    data: Any = like(
        CalibrationOptions,
        "data",
        default=REQUIRED,
        meaning="samples without labels, as the model is fed: an `.npz` with one array for each input, first axis = "
        "samples; a folder of such files, or of images; an `.npy` for each input; or `module:function`, a function "
        "that yields dictionaries of arrays",
        group="data",
    )
    output: Path | None = option(None, "the model to write", "sparse.onnx", short="-o", python=IN_MEMORY, metavar="OUT")
    samples: int = option(
        256, "how many samples (default 256): of more, those that `--seed` draws", "512", group="data"
    )
    seed: int = option(0, "for which samples are taken (default 0)", "1", group="data")
    batch_axis: Axes = like(DataOptions, "batch_axis")
    state: Axes = like(DataOptions, "state")
    dims: Mapping[str, int] | None = like(QuantizeOptions, "dims")
    overwrite: bool = option(False, "replace the output if it exists")


@declared
class CompareOptions:
    """Of `compare`."""

    data: Path | Mapping[str, Any] | None = option(
        None,
        "an `.npz` with arrays named as the inputs, or an `.npy` for the only one, first axis = samples; or a folder "
        "of images (default: random inputs)",
        "samples.npz",
        python="or a mapping of arrays",
        metavar="DATA",
    )
    samples: int | None = option(None, "how many samples (default: all of the data, or 8 random ones)", "64")
    resize: str | Sequence[int] | None = like(ImageOptions, "resize")
    mean: str | float | Sequence[float] | None = like(ImageOptions, "mean")
    std: str | float | Sequence[float] | None = like(ImageOptions, "std")
    layout: str | None = like(ImageOptions, "layout")
    seed: int = option(0, "for random inputs (default 0)", "1")
    dims: Mapping[str, int] | Names | None = option(
        None,
        "the size of a dynamic dimension for random inputs, such as `--dim height=224`, by its name or as INPUT.AXIS "
        "(default: chosen by what the model needs, and said)",
        "height=224",
        flag="--dim",
        more="; may be given several times",
        metavar="NAME=SIZE",
    )
    axis: int | str | Mapping[str, int] | None = option(
        None,
        "the axis of the classes: of all outputs, `--axis 1`, or of one, `--axis logits=-1` (default: the one that the "
        "graph says)",
        "logits=-1",
        more=". It says so by a Softmax, an ArgMax, or the layer whose results the output is; where it does not, there "
        "is no column `same winner`",
        metavar="AXIS",
    )
    batch_axis: Mapping[str, int] | Names | None = like(
        FinetuneOptions,
        "batch_axis",
        more=". See [how axes are named](finetune.md#samples-along-another-axis)",
        group="",
    )
    state: Mapping[str, str] | Names | None = like(
        FinetuneOptions,
        "state",
        more=", see [sequences](finetune.md#sequences). Each model goes by its own states. Without `--data` the random "
        "samples are the steps of one sequence, which begins with zeros",
        group="",
    )


COMMANDS: dict[str, tuple[type, ...]] = {
    "inspect": (InspectOptions,),
    "plan": (PlanOptions,),
    "analyze": (AnalyzeOptions,),
    "channels": (ChannelsOptions,),
    "permute": (PermuteOptions,),
    "prune": (PruneOptions,),
    "mask": (MaskOptions, RecipeText),
    "fold": (FoldOptions,),
    "verify": (VerifyOptions,),
    "finetune": (FinetuneOptions, RecipeText),
    "recipe": (RecipeOptions, CreateOptions),
    "levels": (LevelsOptions, LevelsText),
    "quantize": (QuantizeOptions,),
    "oneshot": (OneshotOptions, RecipeText),
    "compare": (CompareOptions,),
}
"""What each command takes: the arguments of its function, and what the command line alone has."""


# -- messages


@functools.cache
def _by_flag() -> dict[str, Option]:
    """Every option by its flag; of several with one flag, one that takes the values of all."""
    found: dict[str, Option] = {}
    for command in dict.fromkeys(one for several in COMMANDS.values() for one in several):
        for one in options_of(command).values():
            for flag in one.flags[-1:]:
                known = found.get(flag, one)
                found[flag] = replace(known, values=(*dict.fromkeys((*known.values, *one.values)),))
    return found


_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)(?![\w=-])(?: +(?!--)('[^']*'|[^\s;()`]+))?")


def in_python(message: str) -> str:
    """A message that names options by their flags, with the arguments of Python in their place."""
    return _FLAG.sub(_spelled, message)


def _spelled(found: re.Match[str]) -> str:
    flag, word = found[1], found[2] or ""
    if flag == "--lenient":  # the one switch whose argument says the opposite
        return found[0].replace(flag, "strict=False")
    one = _by_flag().get(flag)
    if one is None:
        return found[0]
    value = word.rstrip(".,:")
    rest = word[len(value) :]
    if one.kind == "pairs" and rest[:1] == ":" and not one.takes(value):  # `--dim height: no input has ...`
        return f"{one.name}[{_literal(value)}]{rest}"
    if value and one.takes(value):
        return one.spelled(value) + rest
    return found[0].replace(flag, one.spelled())
