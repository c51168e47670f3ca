"""The proof of a permutation: the whole file gives the outputs that it gave, in the runtime, on random inputs.

1. Inputs are of several kinds and of several sizes: where the file leaves sizes open also of others than those that the
   analysis saw, because it read them as fixed.
2. Floats may differ in their last bits: sums are taken in another order. The tolerance is by their type, against the
   scale of the output. An output that exceeds it is held to what rounding alone does to the model as it is: without the
   runtime's optimizations, and with inputs moved by their last bits. Whole numbers have to be equal, likewise.
3. Where all outputs are whole numbers, the values that they are made from are compared, too.
4. An output that is the same for all inputs, or NaN, or empty, would be so in any order: it proves nothing. Where all
   outputs are like that, or one is random, there is no proof.
5. The model as it is runs once. Its outputs wait in a folder, so each permuted one runs alone.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

from onnxsparse.errors import MissingExtraError, ModelError, OptionError
from onnxsparse.files import Staged
from onnxsparse.graph.attributes import label
from onnxsparse.graph.edit import bodies
from onnxsparse.graph.model import Model
from onnxsparse.passes.compare import DiedError, worked
from onnxsparse.passes.input_sizes import choices
from onnxsparse.passes.permutation_process import KINDS
from onnxsparse.planning.model_inputs import sample_axes

MODULE = "onnxsparse.passes.permutation_process"
TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "float16": 2e-2}
"""How far an element may be from what it was, over its size and the usual one of its output."""
ROUNDING = 4.0
"""How much further than by rounding alone an output may be."""
BLURRED = 0.05
"""Where rounding alone moves outputs by so much of their norm, nothing can be proven."""
WHOLLY = 1e300
"""How far outputs are that cannot be compared."""
MOST_DEATHS = 3
RANDOM = {
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip
WHOLE_NUMBERS = {
    "And", "ArgMax", "ArgMin", "Cast", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual",
    "NonMaxSuppression", "NonZero", "Not", "Or", "Reshape", "Squeeze", "TopK", "Transpose", "Unsqueeze", "Where", "Xor",
}  # fmt: skip
"""Operators that make whole numbers and truth values of floats, and those that may follow."""
FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.UNDEFINED}
MOST_BELOW = 8
_WAYS_OUT = (
    "try other sizes with --dim, or pass --unproven and hold the result to the dense model on samples of your own "
    "with `onnxsparse compare`"
)

Shapes = dict[str, list[int]]


def demand_runtime() -> None:
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError(
            "proving a permutation needs onnxruntime: pip install 'onnxsparse[runtime]' (or [ort]); "
            "--unproven goes on without"
        )


@dataclass
class Proof:
    """The outputs of a model as it is, in a folder, to hold permuted ones to."""

    model: Model
    folder: str
    seed: int = 0
    furthest: float = 0.0
    """How far an output was at most, of what was accepted last."""
    rounded: bool = False
    """Whether the tolerance was that of rounding in the model as it is."""
    refused: str = ""
    """How many of the inputs the model does not run on, and why."""
    uninformative: tuple[str, ...] = ()
    """Of each output that proves nothing, what it is."""
    _ran: list[int] = field(default_factory=list)
    _deadly: int = 0

    def begin(self) -> None:
        """Run the model as it is; an error where the runtime takes it on no inputs."""
        last: ModelError | None = None
        for _ in range(MOST_DEATHS):
            try:
                found = self._worked(self._job("reference"))
            except DiedError as death:
                last = death
                fatal = self.cases[min(death.place, len(self.cases) - 1)]["shapes"]
                self._deadly += sum(case["shapes"] == fatal for case in self.cases)
                self.cases = [case for case in self.cases if case["shapes"] != fatal]
                if self.cases:
                    continue
            except ModelError as error:
                last = error
            except MissingExtraError as error:
                raise MissingExtraError(
                    f"{error.as_flags} to prove a permutation; --unproven goes on without"
                ) from error
            else:
                self._ran = found["ran"]
                self._note_refused(found["error"] or (last.as_flags if last else ""))
                self._demand_shown(found["outputs"])
                return
            break
        raise ModelError(f"{last}; so nothing can be proven: {_WAYS_OUT}") from last

    def _note_refused(self, why: str) -> None:
        count = len(self.cases) - len(self._ran) + self._deadly
        if count:
            self.refused = f"the model does not run on {count} of {len(self.cases) + self._deadly} random inputs: {why}"

    def _demand_shown(self, outputs: Sequence[Mapping[str, Any]]) -> None:
        """Some output depends on what is computed."""
        idle = [one for one in outputs if one["spread"] <= TOLERANCES.get(one["kind"], 0.0)]
        named = dict.fromkeys(f"output '{one['output']}' is {one['holds']} for all random inputs" for one in idle)
        self.uninformative = tuple(named)
        if len(idle) == len(outputs):
            said = next(iter(self.uninformative), "the model gives no output")
            raise ModelError(f"{said}, so nothing can be proven: {_WAYS_OUT}")

    def write(self, name: str) -> str:
        """The model as it is now as a file, with the values below outputs that are whole numbers as outputs, too."""
        outputs = self.model.proto.graph.output
        before = len(outputs)
        outputs.extend(ValueInfoProto(name=one) for one in self._below)
        try:
            return write(self.model, self.folder, name)
        finally:
            del outputs[before:]

    def refusal(self, path: str) -> str:
        """What is wrong with the outputs of a permuted model; '' where nothing is."""
        try:
            found = self._worked({**self._job("check"), "model": path, "called": "the permuted model"})
        except ModelError as error:
            return str(error)
        distances = found["distances"]
        far = [one for one in distances if one["most"] > TOLERANCES.get(one["kind"], 0.0)]
        refusal = next(filter(None, map(self._beyond_rounding, far)), "")
        if not refusal:
            self.rounded = bool(far)
            self.furthest = max((one["most"] for one in distances), default=0.0)
        return refusal

    @property
    def facts(self) -> dict[str, Any]:
        """What the proof was, for reports."""
        ran = [self.cases[place] for place in self._ran]
        sizes = list({str(case["shapes"]): case["shapes"] for case in ran}.values())
        return {
            "inputs": len(ran),
            "shapes": sizes,
            "furthest": self.furthest,
            "rounded": self.rounded,
            "refused": self.refused,
            "uninformative": list(self.uninformative),
        }

    def _beyond_rounding(self, one: Mapping[str, Any]) -> str:
        name = f"output '{one['output']}'"
        again, alike = ([other for other in some if other["output"] == one["output"]] for some in self._noise)
        self._demand_same(name, again)
        most, mean = (max((other[key] for other in alike), default=0.0) for key in ("most", "mean"))
        if mean > BLURRED:
            return f"{name} moves by {100 * mean:.2g} % by rounding alone: nothing can be proven of it"
        if one["most"] <= ROUNDING * most and one["mean"] <= ROUNDING * mean:
            return ""
        if one["most"] >= WHOLLY:
            return f"{name} is of another shape, or not finite in other places"
        if one["mean"] > TOLERANCES.get(one["kind"], 0.0):
            return f"{name} is {one['mean']:.2g} of its norm away"
        return f"an element of {name} is {one['most']:.2g} of its size away"

    def _demand_same(self, name: str, again: Sequence[Mapping[str, Any]]) -> None:
        """The model as it is gives the same twice."""
        apart = [one for one in again if one["most"] > TOLERANCES.get(one["kind"], 0.0)]
        if apart:
            by = f"{100 * min(max(one['mean'] for one in apart), 9.99):.2g} %"
            nodes = ", ".join(list(_random(self.model.proto.graph))[:3])
            raise ModelError(
                f"{name} is random: two runs of the model as it is differ by {by}{nodes and f' ({nodes})'}, so nothing "
                "can be proven: export it for inference, without random operators, or pass --unproven"
            )

    @cached_property
    def _noise(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """How far outputs of the model as it is are when it runs again, and when it is rounded otherwise."""
        found = self._worked(self._job("noise"))
        return found["again"], found["distances"]

    # -- the child

    def _job(self, what: str) -> dict[str, Any]:
        called = self.model.path or "the model"
        return {
            "job": what, "model": self._original, "called": called, "cases": self.cases, "ran": self._ran,
            "seed": self.seed, "limits": self._limits,
        }  # fmt: skip

    def _worked(self, job: Mapping[str, Any]) -> dict[str, Any]:
        return worked(self.folder, MODULE, job, {job["model"]: job["called"]})

    @cached_property
    def _original(self) -> str:
        path = self.model.path
        return self.write("original") if path is None or self._below else os.path.abspath(path)

    @cached_property
    def _below(self) -> list[str]:
        """What outputs are made from where all are whole numbers: few rows of these would show little."""
        graph = self.model.proto.graph
        floats = any(one.type.tensor_type.elem_type in FLOATS for one in graph.output)
        return [] if floats else list(_made_from(graph))[:MOST_BELOW]

    @cached_property
    def cases(self) -> list[dict[str, Any]]:
        """All kinds of inputs of the first shapes, and normal numbers of the others."""
        try:
            first, *others = input_shapes(self.model)
        except OptionError as error:
            why = error.as_flags.partition(";")[0]
            raise OptionError(f"{why}, so nothing can be proven: give it one, or pass --unproven") from error
        pairs = [(first, kind) for kind in KINDS] + [(shapes, KINDS[0]) for shapes in others]
        return [{"number": at, "shapes": shapes, "kind": kind} for at, (shapes, kind) in enumerate(pairs)]

    @cached_property
    def _limits(self) -> dict[str, int]:
        """How large the numbers of an input may be that rows of a table are looked up by."""
        return dict(_looked_up(self.model.proto.graph))


def write(model: Model, folder: str, name: str) -> str:
    """The model with the edits that its tensors have, as a file."""
    path = f"{folder}/{name}.onnx"
    with Staged(True) as staged:
        model.save(path, True, staged)
        staged.commit()
    return path


def input_shapes(model: Model) -> list[Shapes]:
    """Shapes of the inputs to analyse and to run with: two samples first, then one, then three of another size.

    One sample would hide what happens along the first axis; sizes that the file fixes are the same in all.
    """
    found = [choice.shapes for choice in choices(model, sample_axes(model))]
    other = min(found[1:], key=_elements, default=found[0])
    wanted = [_of_samples(model, found[0], 2), found[0], _of_samples(model, other, 3)]
    return [shapes for at, shapes in enumerate(wanted) if shapes not in wanted[:at]]


def _elements(shapes: Shapes) -> int:
    total = 0
    for sizes in shapes.values():
        size = 1
        for one in sizes:
            size *= one
        total += size
    return total


def _of_samples(model: Model, shapes: Shapes, count: int) -> Shapes:
    """The shapes with so many samples, along axes that are open and of which nobody said the size."""
    found = {}
    for value in model.proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        names = [{dim.dim_param, f"{value.name}.{axis}"} for axis, dim in enumerate(dims)]
        if value.name in shapes:
            found[value.name] = [
                count if size == 1 and dim.dim_value <= 0 and not own & set(model.sizes) else size
                for size, dim, own in zip(shapes[value.name], dims, names)
            ]
    return found


def _looked_up(graph: GraphProto) -> Iterator[tuple[str, int]]:
    rows = {tensor.name: tensor.dims for tensor in graph.initializer}
    made = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
        table = rows.get(node.input[0], ()) if node.op_type == "Gather" else ()
        if -len(table) <= axis < len(table):
            yield _source(node.input[1], made), table[axis]


def _made_from(graph: GraphProto) -> Iterator[str]:
    """The values that whole numbers at the end of a graph are made from."""
    made = {name: node for node in graph.node for name in node.output}
    waiting, seen = [one.name for one in graph.output], {""}
    while waiting:
        name = waiting.pop(0)
        if name in made and name not in seen:
            if made[name].op_type in WHOLE_NUMBERS:
                waiting += made[name].input
            elif all(name != one.name for one in graph.output):
                yield name
        seen.add(name)


def _random(graph: GraphProto) -> Iterator[str]:
    """The operators that give other numbers in each run."""
    for node in graph.node:
        if node.op_type in RANDOM:
            yield f"{node.op_type} '{label(node)}'"
        for body in bodies(node):
            yield from _random(body)


def _source(name: str, made: Mapping[str, NodeProto]) -> str:
    """The value that another one has the numbers of."""
    while name in made and made[name].op_type in ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose"):
        name = made[name].input[0]
    return name


__all__ = ["Proof", "Shapes", "demand_runtime", "input_shapes", "write"]
