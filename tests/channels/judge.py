"""Judges a permuted model by the runtime and by its bytes, without anything of the package.

1. Outputs are the same: in float64 where the runtime computes every operator in it, otherwise relative to their scale
   and to the noise that the last places of the weights make.
2. Only the order of numbers inside stored tensors has changed; nodes, names, sizes and metadata have not.
3. 2:4 keeps at least as much of the weights as before, where a search and no dice chose the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from tests.channels.net import Array, Reduction, session

TOLERANCE = {np.dtype(np.float64): 1e-7, np.dtype(np.float32): 3e-5, np.dtype(np.float16): 1e-2}
"""The largest difference of an output, divided by its largest magnitude. Sums of some hundred numbers in another order
differ by a few units in the last place; a channel at the wrong place by about one."""
OURS = "onnxsparse."


def judge(
    model: ModelProto,
    permuted: ModelProto,
    feeds: Mapping[str, Array],
    reductions: Mapping[str, Reduction] = {},
    exact: bool = True,
) -> list[str]:
    """What is wrong with the permuted model, in words; nothing if all is well. External data must be loaded.

    `exact`: try float64 first, which costs two more sessions. `reductions`: the weights whose kept score must not fall.
    """
    wrong = changed_structure(model, permuted) + changed_numbers(model, permuted)
    if wrong:
        return wrong
    wrong = changed_outputs(model, permuted, feeds, exact)
    before, after = kept(model, reductions), kept(permuted, reductions)
    if after < before * (1 - 1e-9):
        wrong.append(f"2:4 keeps {after:.6g} of the weights and kept {before:.6g} before")
    return wrong


# -- outputs


def changed_outputs(
    model: ModelProto, permuted: ModelProto, feeds: Mapping[str, Array], exact: bool = True
) -> list[str]:
    before, after = model, permuted
    if exact:
        before, after, feeds = in_float64(model, permuted, feeds)
    wrong = []
    names = [output.name for output in model.graph.output]
    ran = session(before), session(after)
    for fed in _every_branch(feeds):
        for at, (name, was, now) in enumerate(zip(names, *(one.run(None, fed) for one in ran))):
            distance = relative_distance(was, now)
            if distance > TOLERANCE.get(was.dtype, 0.0) and distance > 10 * _noise(before, fed, at):
                wrong.append(f"output {name} ({was.dtype}) differs by {distance:.2g} of its scale")
    return wrong


def _noise(model: ModelProto, feeds: Mapping[str, Array], output: int) -> float:
    """How far an output moves where every stored number changes in its last place: some graphs amplify that."""
    was = session(model).run(None, feeds)[output]
    if was.dtype.kind != "f":
        return 0.0
    try:
        shaken = [session(_shaken(model, seed)).run(None, feeds)[output] for seed in range(3)]
    except Exception:  # a stored number that has to be exact, such as a scale of Resize
        return 0.0
    return max(relative_distance(was, other) for other in shaken)


def _shaken(model: ModelProto, seed: int) -> ModelProto:
    made, dice = ModelProto(), np.random.default_rng(seed)
    made.CopyFrom(model)
    for tensor in tensors(made).values():
        values = array(tensor)
        if values.dtype.kind == "f" and values.ndim:
            step = np.finfo(values.dtype).eps * dice.standard_normal(values.shape)
            tensor.CopyFrom(numpy_helper.from_array((values * (1 + step)).astype(values.dtype), tensor.name))
    return made


def _every_branch(feeds: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The feeds, and again with each condition turned round."""
    yield dict(feeds)
    for name, value in feeds.items():
        if value.dtype == bool and value.ndim == 0:
            yield {**feeds, name: np.asarray(~value)}


def relative_distance(was: Array, now: Array) -> float:
    """The largest difference over the largest magnitude; infinite where shapes or what is no number differ.

    Outputs that are all nearly zero, such as a mean less itself, are rounding errors: at least 0.01 is their scale.
    """
    if was.shape != now.shape or was.dtype != now.dtype:
        return np.inf
    if was.dtype.kind != "f":
        return float(not np.array_equal(was, now))
    finite = np.isfinite(was)
    if not np.array_equal(was[~finite], now[~finite], equal_nan=True) or not np.isfinite(now[finite]).all():
        return np.inf
    was, now = (each[finite].astype(np.float64) for each in (was, now))
    return float(np.abs(was - now).max(initial=0.0) / max(np.abs(was).max(initial=0.0), 0.01))


def in_float64(
    model: ModelProto, permuted: ModelProto, feeds: Mapping[str, Array]
) -> tuple[ModelProto, ModelProto, Mapping[str, Array]]:
    """Both models in float64 if the runtime has every operator in it, else as they are."""
    wide = {name: values.astype(np.float64) if values.dtype.kind == "f" else values for name, values in feeds.items()}
    both = widened(model), widened(permuted)
    try:
        session(both[0]).run(None, wide)
    except Exception:  # the runtime raises types of its own for each kind of refusal
        return model, permuted, feeds
    return (*both, wide)


FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def widened(model: ModelProto) -> ModelProto:
    """The model with float64 in place of float32 and float16."""
    made = ModelProto()
    made.CopyFrom(model)
    for tensor in tensors(made).values():
        if tensor.data_type in FLOATS:
            values = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for graph in graphs(made.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            if info.type.tensor_type.elem_type in FLOATS:
                info.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in nodes(made):
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in FLOATS:
                attribute.i = TensorProto.DOUBLE
    return made


# -- what is in a model


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type == AttributeProto.GRAPH else ():
                yield from graphs(inner)


def nodes(model: ModelProto) -> Iterator[NodeProto]:
    for graph in graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def tensors(model: ModelProto) -> dict[str, TensorProto]:
    """Every stored tensor by its name, with a number where two bodies use one; that of a Constant by its output."""
    every = [(tensor.name, tensor) for graph in graphs(model.graph) for tensor in graph.initializer]
    for node in nodes(model):
        every += [(node.output[0], one.t) for one in node.attribute if one.type == AttributeProto.TENSOR]
    found: dict[str, TensorProto] = {}
    for name, tensor in every:
        found[name if name not in found else f"{name} #{len(found)}"] = tensor
    return found


def changed_structure(model: ModelProto, permuted: ModelProto) -> list[str]:
    """Everything but the numbers of stored tensors and our own metadata must be the same bytes."""
    return [] if _bare(model) == _bare(permuted) else ["something besides the stored numbers has changed"]


def _bare(model: ModelProto) -> bytes:
    made = ModelProto()
    made.CopyFrom(model)
    for tensor in tensors(made).values():
        bare = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        tensor.CopyFrom(bare)
    kept_entries = [entry for entry in made.metadata_props if not entry.key.startswith(OURS)]
    del made.metadata_props[:]
    made.metadata_props.extend(kept_entries)
    return made.SerializeToString(deterministic=True)


def changed_numbers(model: ModelProto, permuted: ModelProto) -> list[str]:
    """Each stored tensor has the numbers that it had, in some order; those of no floating point, too."""
    before, after = tensors(model), tensors(permuted)
    if before.keys() != after.keys():
        return [f"other stored tensors: {sorted(before.keys() ^ after.keys())}"]
    arrays = {name: (array(before[name]), array(after[name])) for name in before}
    return [
        f"{name} has other numbers, not the same in another order"
        for name, (was, now) in arrays.items()
        if was.shape != now.shape or was.dtype != now.dtype or not np.array_equal(_sorted(was), _sorted(now))
    ]


def array(tensor: TensorProto) -> Array:
    return numpy_helper.to_array(tensor)


def _sorted(values: Array) -> Array:
    """The bytes of each element, sorted: a negative zero is no zero here."""
    if values.dtype.kind in "OSU":
        return np.sort(values.astype("S").ravel())
    return np.sort(np.ascontiguousarray(values).ravel().view(f"u{values.dtype.itemsize}"))


def same_bytes(model: ModelProto, other: ModelProto) -> bool:
    """Whether every stored tensor is the same to the bit."""
    before, after = tensors(model), tensors(other)
    return before.keys() == after.keys() and all(
        array(before[name]).tobytes() == array(after[name]).tobytes() for name in before
    )


# -- along the reduction axes


def kept(model: ModelProto, reductions: Mapping[str, Reduction]) -> float:
    """The sum of the two largest magnitudes in every four, and of what lies in no four."""
    stored = {name: array(tensor) for name, tensor in tensors(model).items()}
    return sum(kept_of_rows(one.rows(stored[name], stored.get(one.scale))) for name, one in reductions.items())


def kept_of_rows(rows: Array) -> float:
    whole = rows.shape[1] // 4 * 4
    four = np.sort(np.abs(rows[:, :whole]).reshape(-1, 4), axis=1)
    return float(four[:, 2:].sum() + np.abs(rows[:, whole:]).sum())


def moved(model: ModelProto, permuted: ModelProto, reductions: Mapping[str, Reduction]) -> set[str]:
    """The weights that have another order along their reduction axis; an order of their rows alone does not count."""
    before, after = tensors(model), tensors(permuted)
    return {
        name
        for name, reduction in reductions.items()
        if not np.array_equal(
            _ordered(reduction.rows(array(before[name]))), _ordered(reduction.rows(array(after[name])))
        )
    }


def _ordered(rows: Array) -> Array:
    return rows[np.lexsort(rows.T[::-1])] if rows.size else rows
