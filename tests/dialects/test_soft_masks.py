"""Thresholds and soft masks as nodes: what they compute, what others may write, and what folding makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.errors import OptionError
from onnxsparse.sparsers.sparser import sigmoid
from tests.dialects.nets import SHAPES, batch, numbers, onnx_model, torch_module
from tests.dialects.test_masks_of_schedules import MODELS, masks_in, probmask, stored
from tests.messages import refusing


def threshold(kind="STR", start=-3.0, scheduler="BaseScheduler", **more):
    return {
        "mask_generator": {"type": f"{kind}MaskGenerator"},
        "fake_sparse": {"type": f"{kind}FakeSparse", "kwargs": {"sInit_value": start}},
        "scheduler": {"type": scheduler},
        **more,
    }


def run(proto, x):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def changed(proto, arrays):
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for tensor in made.graph.initializer:
        if tensor.name in arrays:
            array = np.broadcast_to(arrays[tensor.name], tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    return made


def soft(weight, s):
    return np.sign(weight) * np.maximum(np.abs(weight) - sigmoid(np.float32(s)), 0)


def hard(weight, s):
    return np.where(np.abs(weight) > sigmoid(np.float32(s)), weight, 0)


FORMULAS = {"STR": soft, "FCPTS": hard}


def near(found, wanted, weight, level):
    largest = np.abs(weight).max()
    assert np.abs(found - wanted).max() <= 1e-6 * largest
    clear = np.abs(np.abs(weight) - level) > 1e-6 * largest
    np.testing.assert_array_equal((found == 0)[clear], (wanted == 0)[clear])


@pytest.mark.parametrize("s", [-200.0, -7.0, -3.0, -1.0])
@pytest.mark.parametrize("kind", FORMULAS)
def test_a_threshold_is_written_trained_and_folded(kind, s):
    masked = osp.insert_masks(onnx_model(), config=threshold(kind)).model
    trained = changed(masked, {f"{name}_threshold": s for name in SHAPES})
    folded = osp.fold_masks(trained)
    assert all(row.status == "folded" for row in folded.report.rows)
    assert [node.op_type for node in folded.model.graph.node] == [node.op_type for node in onnx_model().graph.node]
    for name, weight in numbers().items():
        wanted = FORMULAS[kind](weight, s)
        if kind == "STR":
            near(stored(folded.model)[name], wanted, weight, sigmoid(np.float32(s)))
        else:
            clear = np.abs(np.abs(weight) - sigmoid(np.float32(s))) > 1e-6 * np.abs(weight).max()
            np.testing.assert_array_equal(stored(folded.model)[name][clear], wanted[clear])
    x, _ = batch(0)
    np.testing.assert_allclose(run(folded.model, x), run(trained, x), atol=1e-5)
    assert osp.verify(folded.model).report.ok
    assert osp.fold_masks(trained, discard=True).model.SerializeToString() == onnx_model().SerializeToString()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", FORMULAS)
def test_folded_it_is_what_a_loop_has(kind, model):
    scheduler = build_sparse_scheduler(threshold(kind))
    scheduler.prepare_sparse_model(onnx_model() if model == "onnx" else torch_module())
    network = scheduler.network
    folded = stored(osp.fold_masks(osp.insert_masks(onnx_model(), config=threshold(kind)).model).model)
    for site in network.sites:
        name = f"{site.name}.weight"
        near(folded[name], network.effective(site.key), numbers()[name], sigmoid(np.float32(-3)))


def test_a_level_says_where_thresholds_begin_and_few_zeros_are_said():
    found = osp.insert_masks(onnx_model(), config=threshold(), level=50).report
    assert found.totals.zeros == sum(np.prod(shape) for shape in SHAPES.values()) // 2
    notes = osp.insert_masks(onnx_model(), config=threshold(start=-200.0)).report.notes
    assert any("hardly any before a training" in note for note in notes)
    assert any(
        "straight-through" in note for note in osp.insert_masks(onnx_model(), config=threshold("FCPTS")).report.notes
    )


def test_verify_of_a_masked_file_says_to_fold_first():
    for proto in (
        osp.insert_masks(onnx_model(), config=threshold()).model,
        osp.insert_masks(onnx_model(), pattern="2:4").model,
    ):
        assert any("onnxsparse fold" in note for note in osp.verify(proto).report.notes)
        assert osp.verify(proto).report.ok
        if "head.weight_threshold" in stored(proto):
            raised = changed(proto, {f"{name}_threshold": -1.5 for name in SHAPES})
            assert osp.verify(raised).report.ok
            assert osp.verify(raised).report.totals.zeros > osp.verify(proto).report.totals.zeros
        assert not any("fold" in note for note in osp.verify(osp.fold_masks(proto).model).report.notes)


def test_next_thresholds_are_those_that_somebody_trained():
    masked = osp.insert_masks(onnx_model(), config=threshold()).model
    trained = changed(masked, {f"{name}_threshold": -1.5 for name in SHAPES})
    del trained.metadata_props[:]
    again = osp.insert_masks(trained, config=threshold(), iteration=7).model
    for name in SHAPES:
        assert stored(again)[f"{name}_threshold"] == np.float32(-1.5)
        np.testing.assert_array_equal(stored(again)[name], stored(trained)[name])
    assert len(again.graph.node) == len(masked.graph.node)


# -- drawn masks


def test_soft_masks_are_what_the_sparser_computes():
    masked = osp.insert_masks(onnx_model(), config=probmask(seed=3), iteration=4)
    scheduler = build_sparse_scheduler(probmask(seed=3))
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, 4)
    folded = osp.fold_masks(masked.model).model
    for site in model.sites:
        weight, frozen = model.weight(site.key), model.frozen(site.key)
        np.testing.assert_array_equal(stored(masked.model)[f"{site.name}.weight_noise"], frozen["noise"])
        score = np.clip(model.trained(site.key)["score"], 0, 1).astype(np.float64)
        logit = np.log(score + 1e-20) - np.log(1 - score + 1e-20)
        wanted = weight * sigmoid((logit + frozen["noise"]) * frozen["temperature"])
        assert np.abs(stored(folded)[f"{site.name}.weight"] - wanted).max() <= 1e-6 * np.abs(weight).max()
    x, _ = batch(0)
    np.testing.assert_allclose(run(folded, x), run(masked.model, x), atol=1e-5)
    moment = masked.report.details["moment"]
    assert (moment["seed"], moment["iteration"]) == (3, 4)
    assert moment["temperature"] == pytest.approx(1 / (0.97 * 0.6 + 0.03))


def test_the_subnet_follows_the_probabilities_that_somebody_trained():
    masked = osp.insert_masks(onnx_model(), config=probmask(), iteration=4).model
    scores = {f"{name}_score": np.random.default_rng(0).random(shape) for name, shape in SHAPES.items()}
    trained = changed(masked, scores)
    scheduler = build_sparse_scheduler(probmask())
    model = scheduler.prepare_sparse_model(onnx_model())
    for site in model.sites:
        model.sent(site.key, {"score": scores[f"{site.name}.weight_score"].astype(np.float32)})
    scheduler.prune_model(model, 6)
    found = masks_in(osp.insert_masks(trained, config=probmask(), iteration=6).model)
    for key, name in model.names().items():
        np.testing.assert_array_equal(found[name], model.masks()[key], err_msg=name)


def test_the_expected_subnet_has_the_most_probable_numbers():
    masked = osp.insert_masks(onnx_model(), config=probmask(), iteration=4).model
    scores = {f"{name}_score": np.random.default_rng(0).random(shape) for name, shape in SHAPES.items()}
    found = osp.insert_masks(changed(masked, scores), config=probmask(), iteration=6, expected=True)
    assert found.report.details["moment"]["expected"] is True
    assert "seed" not in found.report.details["moment"]
    for name, keep in masks_in(found.model).items():
        score = scores[f"{name}_score"]
        assert score[keep].min() >= score[~keep].max(), name
    size = sum(int(np.prod(shape)) for shape in SHAPES.values())
    kept = sum(int(keep.sum()) for keep in masks_in(found.model).values())
    assert abs(kept - 0.3 * size) <= len(SHAPES)
    with refusing(OptionError):
        osp.insert_masks(onnx_model(), config=threshold(), expected=True)


# -- what others write

SIGN = [
    make_node("Sigmoid", ["s"], ["t"]), make_node("Abs", ["w"], ["a"]), make_node("Sub", ["a", "t"], ["d"]),
    make_node("Relu", ["d"], ["r"]), make_node("Sign", ["w"], ["g"]), make_node("Mul", ["g", "r"], ["v"]),
]  # fmt: skip
GATE = [make_node("Sigmoid", ["p"], ["m"]), make_node("Mul", ["m", "w"], ["v"])]
ABOVE = [
    make_node("Sigmoid", ["s"], ["t"]), make_node("Abs", ["w"], ["a"]), make_node("Greater", ["a", "t"], ["b"]),
    make_node("Cast", ["b"], ["m"], to=1), make_node("Mul", ["w", "m"], ["v"]),
]  # fmt: skip
WHERE = [
    make_node("Abs", ["w"], ["a"]), make_node("Less", ["a", "u"], ["b"]), make_node("Where", ["b", "z", "w"], ["v"]),
]  # fmt: skip


def foreign(nodes, more=(), opset=17):
    random = np.random.default_rng(0)
    arrays = {
        "w": random.standard_normal((12, 8)), "s": np.array(-1.0), "p": random.standard_normal((12, 8)),
        "u": np.array(0.5), "z": np.array(0.0), "k": np.full((12, 8), 0.5), "h": np.array(0.5),
    }  # fmt: skip
    read = {name for node in [*nodes, *more] for name in node.input}
    graph = make_graph(
        [*nodes, make_node("MatMul", ["x", "v"], ["y"], "/fc/MatMul"), *more],
        "net",
        [make_tensor_value_info("x", TensorProto.FLOAT, [None, 12])],
        [make_tensor_value_info("y", TensorProto.FLOAT, None), *(
            make_tensor_value_info(one.output[0], TensorProto.FLOAT, None) for one in more
        )],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items() if n in read],
    )  # fmt: skip
    return make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=8), arrays["w"].astype(np.float32)


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        (SIGN, lambda w: soft(w, -1.0)),
        (ABOVE, lambda w: hard(w, -1.0)),
        (WHERE, lambda w: np.where(np.abs(w) < 0.5, 0, w)),
    ],
)
def test_thresholds_of_others_are_told_by_what_they_compute(nodes, wanted):
    proto, weight = foreign(nodes)
    folded = osp.fold_masks(proto)
    assert [node.op_type for node in folded.model.graph.node] == ["MatMul"]
    assert [one.name for one in folded.model.graph.initializer] == ["w"]
    near(stored(folded.model)["w"], wanted(weight), weight, 0.5 if nodes is WHERE else sigmoid(np.float32(-1)))
    x = np.random.default_rng(1).standard_normal((5, 12)).astype(np.float32)
    np.testing.assert_allclose(run(folded.model, x), run(proto, x), atol=1e-5)


def test_a_sigmoid_of_stored_numbers_is_a_soft_mask():
    proto, weight = foreign(GATE)
    gate = sigmoid(stored(proto)["p"])
    folded = osp.fold_masks(proto).model
    assert np.abs(stored(folded)["w"] - weight * gate).max() <= 1e-6 * np.abs(weight).max()
    assert [node.op_type for node in folded.graph.node] == ["MatMul"]


@pytest.mark.parametrize(
    "nodes",
    [
        [make_node("Mul", ["w", "k"], ["v"])],
        [make_node("Mul", ["w", "h"], ["v"])],
        [make_node("Relu", ["w"], ["v"])],
        [make_node("Abs", ["w"], ["v"])],
        [make_node("Mul", ["w", "w"], ["v"])],
        [make_node("Sigmoid", ["h"], ["m"]), make_node("Mul", ["w", "m"], ["v"])],
        [make_node("Sub", ["w", "h"], ["a"]), make_node("Relu", ["a"], ["v"])],
        [make_node("Add", ["w", "h"], ["v"])],
    ],
)
def test_other_arithmetic_is_no_mask(nodes):
    proto, _ = foreign(nodes)
    folded = osp.fold_masks(proto)
    assert folded.model.graph == proto.graph
    assert not any(row.status == "folded" for row in folded.report.rows)


def test_what_another_reader_sees_stays():
    for more in ([make_node("MatMul", ["x", "w"], ["q"])], [make_node("Relu", ["d"], ["q"])]):
        proto, _ = foreign(SIGN, more)
        assert osp.fold_masks(proto).model.graph == proto.graph


def test_a_reader_behind_a_long_chain_sees_the_weight_without_its_nodes():
    chain = [make_node("Neg", ["w" if at == 0 else f"c{at}"], [f"c{at + 1}"]) for at in range(45)]
    proto, _ = foreign([*chain, *SIGN], [make_node("MatMul", ["x", "c45"], ["q"])])
    assert osp.fold_masks(proto).model.graph == proto.graph


def test_a_trained_threshold_in_half_precision():
    proto = onnx_model()
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    masked = osp.insert_masks(proto, config=threshold()).model
    folded = stored(osp.fold_masks(masked).model)
    for name, weight in stored(proto).items():
        wanted = soft(weight.astype(np.float32), -3.0)
        assert np.abs(folded[name].astype(np.float32) - wanted).max() <= 2e-3 * np.abs(wanted).max()


def test_a_row_for_each_weight_and_none_for_what_stands_beside_it():
    masked = osp.insert_masks(onnx_model(), config=probmask(), iteration=4).model
    assert [row.name for row in osp.fold_masks(masked).report.rows] == list(SHAPES)
    known = {one.key: one.value for one in osp.fold_masks(masked).model.metadata_props}
    assert json.loads(known["onnxsparse.schedule"])["scheduler"] == "ProbMaskPruneScheduler"


def test_weights_that_stand_elsewhere_are_masked_or_left_with_a_reason():
    proto = onnx_model()
    head = next(one for one in proto.graph.initializer if one.name == "head.weight")
    constant = make_node("Constant", [], ["head.weight"], "/constant", value=head)
    proto.graph.initializer.remove(head)
    proto.graph.node.insert(5, constant)
    masked = osp.insert_masks(proto, config=threshold())
    assert masked.report.row("head.weight").status == "masked"
    onnx.checker.check_model(masked.model)
    assert osp.fold_masks(masked.model).report.row("head.weight").status == "folded"
    proto.ir_version = 3
    del proto.graph.input[1:]
    for tensor in proto.graph.initializer:
        proto.graph.input.append(make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims))
    left = osp.insert_masks(proto, config=threshold()).report
    assert {row.status for row in left.rows} == {"dense"}
    assert "main graph" in left.row("stem.weight").reason


def test_a_model_with_its_data_beside_it(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(onnx_model(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    for name, config in (("str", threshold()), ("drawn", probmask())):
        masked = osp.insert_masks(path, config=config, output=tmp_path / f"{name}.onnx")
        again = osp.insert_masks(masked.path, config=config, output=tmp_path / f"{name}2.onnx")
        folded = osp.fold_masks(again.path, output=tmp_path / f"{name}_folded.onnx")
        whole = osp.fold_masks(osp.insert_masks(onnx_model(), config=config).model).model
        assert stored(folded.model).keys() == stored(whole).keys()
        for tensor, array in stored(whole).items():
            np.testing.assert_array_equal(stored(folded.model)[tensor], array)
        assert osp.verify(folded.path).report.ok


def test_a_stranger_learns_the_threshold(tmp_path):
    pytest.importorskip("torch")  # which the package of the training runtime imports
    artifacts = pytest.importorskip("onnxruntime.training.artifacts")
    api = pytest.importorskip("onnxruntime.training.api")
    masked = osp.insert_masks(onnx_model(), config=threshold()).model
    learned = [*SHAPES, *(f"{name}_threshold" for name in SHAPES)]
    frozen = [one.name for one in masked.graph.initializer if one.name not in learned]
    artifacts.generate_artifacts(
        masked, requires_grad=learned, frozen_params=frozen, loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=str(tmp_path),
    )  # fmt: skip
    for path in tmp_path.glob("*.onnx"):  # an onnx newer than the runtime writes IR versions that it refuses
        proto = onnx.load(path)
        proto.ir_version = min(proto.ir_version, 9)
        onnx.save(proto, path)
    state = api.CheckpointState.load_checkpoint(str(tmp_path / "checkpoint"))
    module = api.Module(str(tmp_path / "training_model.onnx"), state, str(tmp_path / "eval_model.onnx"))
    optimizer = api.Optimizer(str(tmp_path / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(0.05)
    for step in range(3):
        module.train()
        module(*batch(step))
        optimizer.step()
        module.lazy_reset_grad()
    module.export_model_for_inferencing(str(tmp_path / "out.onnx"), ["y"])
    trained = onnx.load(tmp_path / "out.onnx")
    del trained.metadata_props[:]
    folded = osp.fold_masks(trained)
    assert all(row.status == "folded" for row in folded.report.rows)
    before, after = stored(masked), stored(trained)
    for name in SHAPES:
        s = float(after[f"{name}_threshold"][0])
        assert s != before[f"{name}_threshold"][0]
        near(stored(folded.model)[name], soft(after[name], s), after[name], sigmoid(np.float32(s)))
    x, _ = batch(9)
    np.testing.assert_allclose(run(folded.model, x), run(trained, x), atol=1e-5)


def test_what_bodies_read_comes_through_the_nodes_as_well():
    def branch(name):
        return make_graph(
            [make_node("MatMul", ["x", "w"], [name])], name, [], [make_tensor_value_info(name, TensorProto.FLOAT, None)]
        )

    node = make_node("If", ["c"], ["y"], "/if", then_branch=branch("a"), else_branch=branch("b"))
    first = make_node("MatMul", ["x", "w"], ["q"], "/first")
    weight = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)
    graph = make_graph(
        [first, node], "net",
        [make_tensor_value_info("x", TensorProto.FLOAT, [2, 12]), make_tensor_value_info("c", TensorProto.BOOL, [])],
        [make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in ("y", "q")],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    proto = make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)
    masked = osp.insert_masks(proto, config=threshold()).model
    folded = osp.fold_masks(masked).model
    near(stored(folded)["w"], soft(weight, -3.0), weight, sigmoid(np.float32(-3)))
    assert folded.graph.node[1] == node


@pytest.mark.parametrize("weight", [np.zeros((12, 8)), np.full((12, 1), 0.25), np.full((12, 8), 100.0)])
def test_odd_weights_have_thresholds_as_well(weight):
    proto, _ = foreign([make_node("Identity", ["w"], ["v"])])
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight.astype(np.float32), "w"))
    masked = osp.insert_masks(proto, config=threshold()).model
    folded = stored(osp.fold_masks(masked).model)["w"]
    assert np.abs(folded - soft(weight.astype(np.float32), -3.0)).max() <= 1e-6 * max(np.abs(weight).max(), 1e-9)


def test_a_level_moves_no_thresholds_that_the_file_has(digits_cnn: Path) -> None:
    config = {
        "mask_generator": {"type": "STRMaskGenerator"},
        "fake_sparse": {"type": "STRFakeSparse"},
        "scheduler": {"type": "STRScheduler"},
    }
    first = osp.insert_masks(str(digits_cnn), config=config, level=50)
    again = osp.insert_masks(first.model, config=config, level=60)
    assert again.report.row("wide.weight").dropped == first.report.row("wide.weight").dropped
    assert not any("go on as they are" in note for note in first.report.notes)
    assert any("go on as they are" in note for note in again.report.notes)


def test_a_size_that_nobody_said_is_asked_for() -> None:
    """Beside one that was said; samples alone count as one."""
    draw = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(draw.normal(size=(16, 16, 3, 3)).astype(np.float32), name) for name in ("one", "two")
    ]
    nodes = [make_node("Conv", ["x", "one"], ["y"], pads=[1] * 4), make_node("Conv", ["y", "two"], ["z"], pads=[1] * 4)]
    ends = [[make_tensor_value_info(name, TensorProto.FLOAT, ["n", 16, "height", "width"])] for name in ("x", "z")]
    model = make_model(make_graph(nodes, "open", *ends, weights), opset_imports=[make_opsetid("", 17)], ir_version=9)
    kwargs = {"total_iters": 70, "sparsity_table": [30, 50], "prun_algo": 1}
    config = {
        "mask_generator": {"type": "NormalMaskGenerator"},
        "fake_sparse": {"type": "FakeSparse"},
        "scheduler": {"type": "AmbaLevelPruneScheduler", "kwargs": kwargs},
    }
    for dims in ({"n": 1}, {"height": 8}, {"n": 1, "x.2": 8}):
        with refusing(OptionError):
            osp.insert_masks(model, config=config, level=50, dims=dims)
    assert osp.insert_masks(model, config=config, level=50, dims={"height": 8, "width": 8}).report.totals.done == 2
