"""What a node really gets decides: no command claims what its numbers deny, whatever stands between a tensor and it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxsparse as osp
from onnxsparse import api
from onnxsparse.errors import OnnxSparseError, ProofError
from onnxsparse.graph.constants import Constant
from onnxsparse.graph.model import Model
from onnxsparse.passes import fold_masks
from onnxsparse.passes.evaluated_weights import SecondOpinion, slabs
from onnxsparse.passes.fold_masks import FoldMasks
from onnxsparse.passes.proof import FOLD, MASK, Before, compare
from onnxsparse.patterns import parse
from tests.cases import for_each
from tests.messages import refusing

Array = np.ndarray
ALLOW = ("stem", "output", "small")
node = helper.make_node


@dataclass(frozen=True)
class Site:
    """A value that a node reads as a weight: its name, its reduction axis, and what zero is there."""

    value: str
    reduce: int
    zero: Array | int = 0


@dataclass(frozen=True)
class Built:
    nodes: list[onnx.NodeProto]
    stored: Mapping[str, Array]
    sites: tuple[Site, ...]
    feeds: Mapping[str, Array] = field(default_factory=lambda: {"x": X})
    functions: tuple[onnx.FunctionProto, ...] = ()

    def model(self) -> onnx.ModelProto:
        made = [name for one in self.nodes for name in one.output]
        read = {name for one in self.nodes for name in one.input}
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.feeds.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in made if name not in read]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.stored.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, tensors)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(self.functions))


X = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)


def dense(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(0.5, 2.0, shape).astype(np.float32)


def half(*shape: int, axis: int = 0, shift: int = 0) -> Array:
    """A mask that keeps 2 of 4 along an axis."""
    at = np.indices(shape)[axis] + shift
    return (at % 4 < 2).astype(np.float32)


def codes(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng([seed, *shape]).integers(3, 90, shape).astype(np.int8)


F32 = np.float32
I64 = np.int64
CASES: dict[str, Callable[[], Built]] = {}


def case(make: Callable[[], Built]) -> Callable[[], Built]:
    CASES[make.__name__] = make
    return make


@case
def a_mask_with_a_factor() -> Built:
    nodes = [node("Mul", ["m", "f"], ["mf"]), node("Mul", ["w", "mf"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    return Built(nodes, {"w": dense(8, 8), "m": half(8, 8), "f": np.array(2.5, F32)}, (Site("p", 0),))


@case
def a_mask_divided_by_the_share_that_it_keeps() -> Built:
    nodes = [node("Div", ["m", "f"], ["mf"]), node("Mul", ["mf", "w"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    return Built(nodes, {"w": dense(8, 8), "m": half(8, 8), "f": np.array([0.5], F32)}, (Site("p", 0),))


@case
def a_mask_that_is_dequantised() -> Built:
    nodes = [
        node("DequantizeLinear", ["m", "s", "z"], ["md"]),
        node("Mul", ["w", "md"], ["p"]),
        node("MatMul", ["x", "p"], ["y"]),
    ]
    stored = {"w": dense(8, 8), "m": half(8, 8).astype(np.int8), "s": np.array(3.0, F32), "z": np.array(1, np.int8)}
    return Built(nodes, stored, (Site("p", 0),))


@case
def where_with_another_third_input() -> Built:
    nodes = [node("Where", ["m", "w", "o"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    stored = {"w": dense(8, 8), "m": half(8, 8) > 0, "o": np.array(0.25, F32)}
    return Built(nodes, stored, (Site("p", 0),))


@case
def an_inverted_mask() -> Built:
    nodes = [node("Not", ["m"], ["n"]), node("Where", ["n", "w", "o"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    return Built(nodes, {"w": dense(8, 8), "m": half(8, 8) > 0, "o": np.array(0, F32)}, (Site("p", 0),))


@case
def another_reader_computes_with_the_bare_weight() -> Built:
    nodes = [
        node("Mul", ["w", "m"], ["p"]),
        node("MatMul", ["x", "p"], ["y"]),
        node("Neg", ["w"], ["n"]),
        node("MatMul", ["x", "n"], ["y2"]),
    ]
    return Built(nodes, {"w": dense(8, 8), "m": half(8, 8)}, (Site("p", 0), Site("n", 0)))


@case
def another_reader_hands_the_bare_weight_out() -> Built:
    nodes = [node("Mul", ["w", "m"], ["p"]), node("MatMul", ["x", "p"], ["y"]), node("Abs", ["w"], ["out"])]
    return Built(nodes, {"w": dense(8, 8), "m": half(8, 8)}, (Site("p", 0),))


@case
def read_masked_first_and_dense_second() -> Built:
    nodes = [
        node("Mul", ["w", "m"], ["p"]),
        node("MatMul", ["x", "p"], ["y"]),
        node("Identity", ["w"], ["d"]),
        node("MatMul", ["x", "d"], ["y2"]),
    ]
    return Built(nodes, {"w": dense(8, 8), "m": half(8, 8)}, (Site("p", 0), Site("d", 0)))


def _masked_call(name: str) -> onnx.FunctionProto:
    body = [node("Mul", ["a", "k"], ["ak"]), node("MatMul", ["t", "ak"], ["r"])]
    return helper.make_function("local", name, ["t", "a", "k"], ["r"], body, [helper.make_opsetid("", 21)])


@case
def one_function_called_with_two_masks() -> Built:
    nodes = [
        node("Masked", ["x", "w", "m1"], ["y1"], domain="local"),
        node("Masked", ["x", "w", "m2"], ["y2"], domain="local"),
    ]
    stored = {"w": dense(8, 8), "m1": half(8, 8), "m2": half(8, 8, shift=1)}
    return Built(nodes, stored, (), functions=(_masked_call("Masked"),))


@case
def one_function_called_with_a_mask_and_with_ones() -> Built:
    nodes = [
        node("Masked", ["x", "w", "m1"], ["y1"], domain="local"),
        node("Masked", ["x", "w", "m2"], ["y2"], domain="local"),
    ]
    stored = {"w": dense(8, 8), "m1": half(8, 8), "m2": np.ones((8, 8), F32)}
    return Built(nodes, stored, (), functions=(_masked_call("Masked"),))


@case
def a_mask_on_rows_that_were_put_into_another_order() -> Built:
    nodes = [
        node("Split", ["w"], ["a", "b"], axis=1, num_outputs=2),
        node("Concat", ["b", "a"], ["c"], axis=1),
        node("Mul", ["c", "m"], ["p"]),
        node("MatMul", ["x", "p"], ["y"]),
    ]
    mask = half(8, 8)
    mask[:, :4] = half(8, 4, shift=2)
    return Built(nodes, {"w": dense(8, 8), "m": mask}, (Site("p", 0),))


@case
def zero_points_on_rows_that_were_put_into_another_order() -> Built:
    nodes = [
        node("Split", ["w"], ["a", "b"], axis=1, num_outputs=2),
        node("Concat", ["b", "a"], ["c"], axis=1),
        node("DequantizeLinear", ["c", "s", "z"], ["p"], axis=1),
        node("MatMul", ["x", "p"], ["y"]),
    ]
    stored = {"w": codes(8, 8), "s": dense(8), "z": np.arange(8, dtype=np.int8)}
    return Built(nodes, stored, (Site("p", 0),))


@case
def zero_points_of_an_integer_product_behind_a_shuffle() -> Built:
    nodes = [
        node("Split", ["w"], ["a", "b"], axis=1, num_outputs=2),
        node("Concat", ["b", "a"], ["p"], axis=1),
        node("MatMulInteger", ["x", "p", "", "z"], ["y"]),
    ]
    zeros = np.array([0, 0, 0, 0, 7, 7, 7, 7], np.int8)
    return Built(nodes, {"w": codes(8, 8), "z": zeros}, (Site("p", 0, zeros),), {"x": codes(2, 8)})


@case
def a_sum_before_the_product() -> Built:
    nodes = [node("Add", ["w", "b"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    return Built(nodes, {"w": dense(8, 8), "b": np.array(1.0, F32)}, (Site("p", 0),))


@case
def quantised_and_dequantised_with_two_zero_points() -> Built:
    nodes = [
        node("QuantizeLinear", ["w", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z2"], ["p"]),
        node("MatMul", ["x", "p"], ["y"]),
    ]
    stored = {
        "w": dense(8, 8), "s": np.array(0.1, F32), "z": np.array(0, np.int8), "z2": np.array(5, np.int8),
    }  # fmt: skip
    return Built(nodes, stored, (Site("p", 0),))


@case
def floats_that_are_cast_to_codes() -> Built:
    nodes = [
        node("Cast", ["w"], ["i"], to=TensorProto.INT8),
        node("DequantizeLinear", ["i", "s", "z"], ["p"]),
        node("MatMul", ["x", "p"], ["y"]),
    ]
    stored = {"w": codes(8, 8).astype(F32), "s": np.array(0.1, F32), "z": np.array(5, np.int8)}
    return Built(nodes, stored, (Site("p", 0),))


@case
def codes_that_are_scaled_before_they_are_dequantised() -> Built:
    nodes = [
        node("Mul", ["w", "f"], ["i"]),
        node("DequantizeLinear", ["i", "s", "z"], ["p"]),
        node("MatMul", ["x", "p"], ["y"]),
    ]
    stored = {"w": codes(8, 8) // 4, "f": np.array(2, np.int8), "s": np.array(0.1, F32), "z": np.array(5, np.int8)}
    return Built(nodes, stored, (Site("p", 0),))


@case
def a_second_use_behind_a_value_of_the_run() -> Built:
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Mul", ["w", "g"], ["v"]),
        node("Transpose", ["v"], ["p"], perm=[1, 0]),
        node("MatMul", ["x", "p"], ["y2"]),
    ]
    feeds = {"x": X, "g": np.array(2.0, F32)}
    return Built(nodes, {"w": dense(8, 8)}, (Site("w", 0), Site("p", 0)), feeds)


@case
def a_second_use_that_a_loop_hands_out() -> Built:
    body = helper.make_graph(
        [node("Identity", ["c"], ["c2"]), node("Transpose", ["s"], ["s2"], perm=[1, 0])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", 9, []),
         helper.make_tensor_value_info("s", 1, [8, 8])],
        [helper.make_tensor_value_info("c2", 9, []), helper.make_tensor_value_info("s2", 1, [8, 8])],
    )  # fmt: skip
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Loop", ["n", "t", "w"], ["p"], body=body),
        node("MatMul", ["x", "p"], ["y2"]),
    ]
    stored = {"w": dense(8, 8), "n": np.array(1, I64), "t": np.array(True)}
    return Built(nodes, stored, (Site("w", 0), Site("p", 0)))


@case
def one_mask_that_is_not_a_number_everywhere() -> Built:
    mask = half(8, 8)
    mask[0, 0] = np.nan
    nodes = [node("Mul", ["w", "m"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    return Built(nodes, {"w": dense(8, 8), "m": mask}, (Site("p", 0),))


@case
def an_old_broadcast_of_a_mask() -> Built:
    """Right at every opset: the outputs are halved by a column of zeros and ones."""
    nodes = [node("Mul", ["w", "m"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    return Built(nodes, {"w": dense(8, 8), "m": half(8, 1)}, (Site("p", 0),))


def _written(command: Callable[[], api.Result], folder: Path) -> api.Result | None:
    """What a command made; a refusal leaves nothing behind."""
    try:
        return command()
    except OnnxSparseError as error:
        code = error.exit_code
    assert code in (1, 2)
    assert not list(folder.iterdir())
    return None


def runs(model: onnx.ModelProto, feeds: Mapping[str, Array], extra: tuple[str, ...] = ()) -> list[Array]:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    have = {one.name for one in made.graph.output}
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra if name not in have)
    session = ReferenceEvaluator(made)
    names = list(extra) or [one.name for one in made.graph.output]
    with np.errstate(all="ignore"):
        return list(session.run(names, dict(feeds)))


def holds_2_of_4(array: Array, site: Site) -> bool:
    moved = np.moveaxis(array != site.zero, site.reduce, -1)
    return bool((moved.reshape(-1, 4).sum(1) <= 2).all())


def truth(built: Built, model: onnx.ModelProto) -> bool:
    """Whether every node of the model gets 2 of 4."""
    stored = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    for site in built.sites:
        array = stored[site.value] if site.value in stored else runs(model, built.feeds, (site.value,))[0]
        if not holds_2_of_4(array, site):
            return False
    return True


@for_each("name", CASES)
def test_verify_says_holds_only_where_it_does(name: str) -> None:
    built = CASES[name]()
    model = built.model()
    try:
        report = api.verify(model, pattern="2:4", allow=ALLOW).report
    except OnnxSparseError:
        return
    if built.sites and report.ok:
        assert truth(built, model)
    for row in report.rows:
        assert row.status != "violated" or row.reason
    if name.startswith("one_function_called_with_a_mask_and"):
        assert not report.ok


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("discard", [False, True])
def test_fold_leaves_every_number_or_nothing_behind(name: str, discard: bool, tmp_path: Path) -> None:
    built = CASES[name]()
    model, target = built.model(), tmp_path / "out.onnx"
    if not _written(lambda: api.fold_masks(model, output=target, discard=discard), tmp_path):
        return
    if not discard:
        for before, after in zip(runs(model, built.feeds), runs(onnx.load(target), built.feeds)):
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", CASES)
def test_prune_says_pruned_only_where_the_nodes_get_zeros(name: str, tmp_path: Path) -> None:
    built = CASES[name]()
    target = tmp_path / "out.onnx"
    result = _written(lambda: api.prune(built.model(), output=target, pattern="2:4", allow=ALLOW), tmp_path)
    if result is None:
        return
    row = result.report.row("w")
    if row.status == "pruned" and built.sites:
        assert truth(built, onnx.load(target))


@pytest.mark.parametrize(
    "name",
    [
        "a_sum_before_the_product",
        "quantised_and_dequantised_with_two_zero_points",
        "floats_that_are_cast_to_codes",
        "codes_that_are_scaled_before_they_are_dequantised",
        "a_second_use_behind_a_value_of_the_run",
        "a_second_use_that_a_loop_hands_out",
    ],
)
def test_a_weight_whose_zero_is_none_or_whose_use_is_not_known_stays_dense(name: str) -> None:
    row = api.plan(CASES[name]().model(), pattern="2:4", allow=ALLOW).report.row("w")
    assert row.status == "dense"
    assert "MatMul" in row.reason


# -- the proof itself


def plain() -> Built:
    nodes = [node("Mul", ["w", "m"], ["p"]), node("MatMul", ["x", "p"], ["y"]), node("Neg", ["b"], ["n"])]
    return Built([*nodes, node("Add", ["y", "n"], ["out"])], {"w": dense(8, 8), "m": half(8, 8), "b": dense(8)}, ())


def folded(change: Callable[[onnx.ModelProto], None]) -> tuple[Before, Model]:
    """A model before folding, and what a fold that does `change` as well would write."""
    model = Model.open(plain().model())
    before = Before.of(model, FOLD, [site.weight.tensor for site in model.flow.mask_sites])
    FoldMasks()(model)
    before.hold()
    proto = model.take_proto()
    change(proto)
    return before, Model.over(proto)


def _set(proto: onnx.ModelProto, name: str, at: int, value: float) -> None:
    tensor = next(one for one in proto.graph.initializer if one.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[at] = value
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def test_a_fold_that_is_right_is_proven() -> None:
    before, after = folded(lambda proto: None)
    compare(before, after.evaluator)


def test_a_fold_that_keeps_a_masked_number_is_not_proven() -> None:
    before, after = folded(lambda proto: _set(proto, "w", 20, 0.5))
    with refusing(ProofError) as caught:
        compare(before, after.evaluator)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_a_fold_that_drops_another_readers_node_is_not_proven() -> None:
    def drop(proto: onnx.ModelProto) -> None:
        del proto.graph.node[[one.op_type for one in proto.graph.node].index("Neg")]
        proto.graph.node[-1].input[1] = "b"

    before, after = folded(drop)
    with refusing(ProofError):
        compare(before, after.evaluator)


def test_a_proof_that_fails_writes_nothing_and_ends_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.onnx"
    source.write_bytes(plain().model().SerializeToString())
    original = fold_masks._Masked
    monkeypatch.setattr(fold_masks, "_Masked", lambda tensor, keep: original(tensor, ~keep))
    from onnxsparse.cli import main

    assert main(["fold", str(source), "-o", str(tmp_path / "out.onnx")]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
    assert "'w' at MatMul" in capsys.readouterr().err
    with pytest.raises(ProofError):
        api.fold_masks(plain().model())


def test_masks_that_do_more_than_mask_are_not_proven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from onnxsparse.passes import insert_masks

    original = insert_masks._mask_numbers
    monkeypatch.setattr(insert_masks, "_mask_numbers", lambda *given: original(*given) * np.float32(2))
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("Relu", ["y"], ["r"]), node("MatMul", ["r", "v"], ["out"])]
    model = Built(nodes, {"w": dense(8, 8), "v": dense(8, 8, seed=2)}, ()).model()
    with pytest.raises(ProofError, match=f"{MASK} does not hold for"):
        osp.insert_masks(model, pattern="2:4", output=tmp_path / "out.onnx", allow=ALLOW)
    assert not list(tmp_path.iterdir())


def test_a_pruning_that_forgets_a_use_is_not_proven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The walk is made blind to a node that reads the weight turned."""
    from onnxsparse.graph.uses import Uses

    original = Uses._add
    monkeypatch.setattr(Uses, "_add", lambda self, tensor, use: use.node == "blind" or original(self, tensor, use))
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["x", "t"], ["z"], name="blind"),
    ]
    model = Built(nodes, {"w": dense(8, 8)}, ()).model()
    row = api.prune(model, pattern="2:4", allow=ALLOW).report.row("w")
    assert row.status == "dense"
    assert "MatMul 'blind'" in row.reason
    monkeypatch.setattr("onnxsparse.graph.model.refuse_unseen", lambda *given: None)
    with refusing(ProofError):
        api.prune(model, pattern="2:4", allow=ALLOW, output=tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


# -- samples


@pytest.mark.parametrize("pattern", ["2:4", "unstructured"])
def test_large_values_are_sampled_and_read_whole_when_asked(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.passes import evaluated_weights

    monkeypatch.setattr(evaluated_weights, "WHOLE", 1 << 12)
    monkeypatch.setattr(evaluated_weights, "AT_ONCE", 1 << 12)
    monkeypatch.setattr(evaluated_weights, "SLAB", 1 << 9)
    masks = {"m": half(64, 96).astype(np.float16)}
    nodes = [node("Cast", ["m"], ["c"], to=1), node("Mul", ["w", "c"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    feeds = {"x": np.ones((1, 64), F32)}
    built = Built(nodes, {"w": dense(64, 96), **masks}, (), feeds)
    sparsity = None if pattern == "2:4" else 0.5
    report = api.verify(built.model(), pattern=pattern, sparsity=sparsity).report
    assert report.ok
    assert report.sampled
    whole = api.verify(built.model(), pattern=pattern, sparsity=sparsity, full=True).report
    assert whole.ok
    assert not whole.sampled


def test_samples_lie_at_both_ends_and_at_every_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.passes import evaluated_weights

    monkeypatch.setattr(evaluated_weights, "SLAB", 64)
    nodes = [
        node("Concat", ["a", "b", "c"], ["w"], axis=0),
        node("Mul", ["w", "s"], ["p"]),
        node("MatMul", ["p", "x"], ["y"]),
    ]
    stored = {"a": dense(90, 8), "b": dense(37, 8), "c": dense(200, 8), "s": np.array(2.0, F32)}
    built = Built(nodes, stored, (), {"x": np.ones((8, 1), F32)})
    arrival = next(one for one in Model.over(built.model()).evaluator.arrivals if one.slot is not None)
    assert isinstance(arrival.value, Constant)
    matrix = arrival.matrix(arrival.value)
    assert matrix is not None
    assert matrix.shape == (1, 327, 8, 1)
    rows = set(np.concatenate(list(slabs(matrix, 64))).tolist())
    assert {0, 89, 90, 126, 127, 326} <= rows
    assert len(rows) < 100


@pytest.mark.parametrize("at_once", [1 << 12, 1 << 29])
def test_one_wrong_row_is_found_where_all_are_read(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.passes import evaluated_weights

    monkeypatch.setattr(evaluated_weights, "WHOLE", 1 << 12)
    monkeypatch.setattr(evaluated_weights, "AT_ONCE", at_once)
    mask = half(64, 96)
    mask[:, 50] = 1
    nodes = [node("Cast", ["m"], ["c"], to=1), node("Mul", ["w", "c"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    built = Built(nodes, {"w": dense(64, 96), "m": mask.astype(np.float16)}, (), {"x": np.ones((1, 64), F32)})
    model = Model.over(built.model())
    weight = next(one for one in model.weights if one.name == "w")
    doubt = SecondOpinion(model.evaluator, full=True).doubt("w", weight, parse("2:4"), 0)
    assert "16 groups" in doubt
    assert "MatMul" in doubt


def test_a_plain_product_with_a_mask_is_settled_without_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both lie in memory as the walk has them: what it counted is exact, however large they are."""
    from onnxsparse.passes import evaluated_weights

    monkeypatch.setattr(evaluated_weights, "WHOLE", 1 << 12)
    monkeypatch.setattr(evaluated_weights.Judge, "_by_numbers", lambda *_: "the numbers were computed")
    plain_nodes = [node("Mul", ["w", "m"], ["p"]), node("MatMul", ["x", "p"], ["y"])]
    turned = [node("Transpose", ["m"], ["t"], perm=[1, 0]), node("Mul", ["w", "t"], ["p"]), plain_nodes[1]]
    feeds = {"x": np.ones((1, 96), F32)}
    for nodes, computed in ((plain_nodes, False), (turned, True)):
        built = Built(
            nodes, {"w": dense(96, 96), "m": half(96, 96) if nodes is plain_nodes else half(96, 96).T}, (), feeds
        )
        row = api.verify(built.model(), pattern="2:4").report.row("w")
        assert ("the numbers were computed" in row.reason) == computed
