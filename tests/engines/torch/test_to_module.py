"""From a graph to a module: what becomes a parameter, what a call, what a child module, and what is refused."""

from __future__ import annotations

import copy
import io
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

import onnxsparse as osp
from onnxsparse.engines.torch import library
from onnxsparse.errors import MissingExtraError, ModelError
from onnxsparse.torch import to_module
from tests.engines.torch.running import MICROSOFT, apply, assert_equal, assert_same, model, numbers, runtime
from tests.messages import refusing

X = {"x": numbers(3, 4)}
W, V = numbers(4, 5, seed=1), numbers(5, 2, seed=2)


def parameters(module: Any) -> set[str]:
    return {name for name, _ in module.named_parameters()}


def buffers(module: Any) -> set[str]:
    return {name for name, _ in module.named_buffers()}


def graph(nodes: list[Any], inputs: list[Any], outputs: list[str], stored: dict[str, Any] | None = None) -> Any:
    return helper.make_graph(
        nodes,
        "body",
        inputs,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(one, name) for name, one in (stored or {}).items()],
    )


def test_weights_biases_and_scaling_vectors_are_parameters_and_nothing_else() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("Add", ["a", "bias"], ["b"]),
        make_node("Mul", ["b", "point5"], ["c"]),
        make_node("Mul", ["c", "factors"], ["d"]),
        make_node("Sub", ["d", "mean"], ["e"]),
        make_node("Add", ["e", "table"], ["f"]),
        make_node("LayerNormalization", ["f", "scale", "shift"], ["y"]),
    ]
    vector = {name: numbers(5, seed=index) for index, name in enumerate(("bias", "factors", "mean", "scale", "shift"))}
    stored = {"w": W, "point5": np.float32([0.5]), "table": numbers(3, 5), **vector}
    module = assert_same(model(nodes, X, stored), X)
    assert parameters(module) == {"w", "bias", "factors", "scale", "shift"}
    assert buffers(module) == {"point5", "mean", "table"}


def test_a_weight_is_found_behind_what_only_moves_it() -> None:
    nodes = [
        make_node("Constant", [], ["w"], value=numpy_helper.from_array(W.T.copy())),
        make_node("Identity", ["w"], ["same"]),
        make_node("Transpose", ["same"], ["turned"], perm=[1, 0]),
        make_node("Mul", ["turned", "mask"], ["masked"]),
        make_node("Mul", ["masked", "scale"], ["scaled"]),
        make_node("MatMul", ["x", "scaled"], ["y"]),
    ]
    mask = (np.arange(20).reshape(4, 5) % 3 > 0).astype(np.float32)
    module = assert_same(model(nodes, X, {"mask": mask, "scale": np.float32(2)}), X)
    assert parameters(module) == {"w"}
    assert buffers(module) == {"mask", "scale"}


def test_both_parts_of_a_normalized_weight_train() -> None:
    nodes = [
        make_node("ReduceL2", ["v"], ["size"], axes=[0], keepdims=1),
        make_node("Div", ["v", "size"], ["unit"]),
        make_node("Mul", ["unit", "g"], ["w"]),
        make_node("MatMul", ["x", "w"], ["y"]),
    ]
    module = assert_same(model(nodes, X, {"v": W, "g": numbers(1, 5)}), X)
    assert parameters(module) == {"v", "g"}


def test_what_is_looked_up_depends_on_the_inputs() -> None:
    """A look-up table is a weight; what is added to its rows is none because of that."""
    nodes = [
        make_node("Gather", ["table", "x"], ["rows"]),
        make_node("Add", ["rows", "places"], ["sum"]),
        make_node("MatMul", ["sum", "w"], ["y"]),
    ]
    feeds = {"x": np.array([1, -1, 0])}
    module = assert_same(model(nodes, feeds, {"table": numbers(6, 4), "places": numbers(3, 4), "w": W}), feeds)
    assert parameters(module) == {"table", "w"}


def test_one_tensor_of_the_file_is_one_parameter() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("Identity", ["w"], ["again"]),
        make_node("Transpose", ["again"], ["turned"]),
        make_node("MatMul", ["a", "turned"], ["y"]),
    ]
    module = assert_same(model(nodes, X, {"w": W}), X)
    assert parameters(module) == {"w"}


def test_two_names_for_the_same_bytes_of_a_data_file_are_one_parameter(tmp_path: Path) -> None:
    nodes = [make_node("MatMul", ["x", "w"], ["a"]), make_node("Gemm", ["a", "v"], ["y"], transB=1)]
    proto = model(nodes, X, {"w": W, "v": W})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="d", size_threshold=0)
    small = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    del small.graph.initializer[1].external_data[:]
    small.graph.initializer[1].external_data.extend(small.graph.initializer[0].external_data)
    onnx.save(small, tmp_path / "m.onnx")
    module = to_module(tmp_path / "m.onnx")
    assert len(list(module.parameters())) == 1
    assert module.w is module.v


def test_the_names_of_the_file_survive_as_far_as_python_takes_them() -> None:
    names = ["layer.0.weight", "layer.0", "a/b::c;d", "forward", "5", "a_b_c_d", "class", "a.lambda", "None", "self"]
    nodes = [
        make_node("MatMul", ["x" if index == 0 else f"y{index - 1}", name], [f"y{index}"])
        for index, name in enumerate(names)
    ]
    stored = {name: numbers(4, 4, seed=index) for index, name in enumerate(names)}
    module = assert_same(model(nodes, X, stored, outputs=[f"y{len(names) - 1}"]), X)
    found = {name: tensor for name, (_, tensor) in module.onnx_names["tensors"].items()}
    assert set(found.values()) == set(names)
    assert found["layer.0.weight"] == "layer.0.weight"
    assert found["5"] == "5"
    assert set(module.state_dict()) == set(found)


@pytest.mark.parametrize("name", ["self", "class", "input.1", "1", "x:0"])
def test_inputs_may_have_any_name(name: str) -> None:
    assert_same(model([make_node("MatMul", [name, "w"], ["y"])], {name: X["x"]}, {"w": numbers(4, 3)}), {name: X["x"]})


def test_batch_normalization_is_a_fixed_map_unless_it_is_asked_for() -> None:
    feeds = {"x": numbers(4, 3, 5, 5)}
    stored = {"s": numbers(3), "b": numbers(3), "m": numbers(3), "v": np.float32([1, 2, 3])}
    proto = model([make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])], feeds, stored)
    module = assert_same(proto, feeds)
    assert parameters(module) == {"s", "b"}
    module.train()
    apply(module, feeds)
    assert torch.equal(module.m, torch.from_numpy(stored["m"]))
    follows = to_module(proto, train_bn=True)
    (y,) = apply(follows, feeds)
    assert not torch.equal(follows.m, torch.from_numpy(stored["m"]))
    assert not np.allclose(y.detach().numpy(), runtime(proto, feeds)[0], atol=1e-2)
    assert follows.onnx_names["tensors"].keys() == {"s", "b", "m", "v"}
    assert_equal(apply(to_module(proto, train_bn=True).eval(), feeds)[0], runtime(proto, feeds)[0])


def test_dropout_does_nothing() -> None:
    node = make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"])
    stored = {"ratio": np.float32(0.9), "training": np.array(True)}
    y, mask = apply(to_module(model([node], X, stored, outputs=["y", "mask"])), X)
    assert torch.equal(y, torch.from_numpy(X["x"]))
    assert bool(mask.all())


def test_what_is_also_a_size_is_no_parameter_and_does_not_train() -> None:
    """Exporters store the ones of a normalization and of Resize once."""
    feeds = {"x": numbers(6, 4, 5, 5)}
    stored = {"w": numbers(4, 4, 3, 3), "ones": np.ones(4, np.float32), "b": numbers(4)}
    nodes = [
        make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        make_node("InstanceNormalization", ["c", "ones", "b"], ["n"]),
        make_node("Resize", ["n", "", "ones"], ["y"]),
    ]
    proto = model(nodes, feeds, stored)
    assert parameters(assert_same(proto, feeds)) == {"w", "b"}
    options = {"pattern": "unstructured", "sparsity": 0.5, "allow": ["small", "stem", "output"], "steps": 4, "lr": 0.1}
    tuned = osp.finetune(proto, data={"x": numbers(64, 4, 5, 5)}, engine="torch", retries=0, **options)
    assert tuned.model is not None
    found = {one.name: numpy_helper.to_array(one) for one in tuned.model.graph.initializer}
    assert (found["ones"] == 1).all()


def in_training_mode(training: int) -> onnx.ModelProto:
    stored = {"s": numbers(8), "b": numbers(8), "m": numbers(8), "v": np.float32([1] * 8),
              "r": np.array(0.5, np.float32), "t": np.array(bool(training))}  # fmt: skip
    nodes = [
        make_node("MatMul", ["x", "u"], ["h"]),
        make_node("BatchNormalization", ["h", "s", "b", "m", "v"], ["n"], name="norm", training_mode=training),
        make_node("Dropout", ["n", "r", "t"], ["y"], name="drop"),
    ]
    return model(nodes, {"x": numbers(16, 4)}, {**stored, "u": numbers(4, 8)})


def test_a_file_that_was_exported_in_training_mode_says_so(caplog: pytest.LogCaptureFixture) -> None:
    feeds = {"x": numbers(16, 4)}
    module = to_module(in_training_mode(1))
    (said,) = caplog.messages
    assert "training mode (BatchNormalization 'norm', Dropout 'drop')" in said
    assert "export it again after .eval()" in said
    (y,) = apply(module, feeds)
    normal = (y - module.b) / module.s  # by its own batch, nothing dropped
    assert torch.allclose(normal.mean(0), torch.zeros(8), atol=1e-4)
    caplog.clear()
    fixed = to_module(in_training_mode(0))
    assert not caplog.messages
    stored = to_module(in_training_mode(1), train_bn=True).eval()
    assert torch.allclose(apply(fixed, feeds)[0], apply(stored, feeds)[0], atol=1e-5)


@pytest.mark.parametrize("training", [0, 1])
def test_verify_and_finetune_say_what_was_exported_in_training_mode(training: int) -> None:
    proto = in_training_mode(training)
    options = {"pattern": "2:4", "allow": ["small"]}
    tuned = osp.finetune(proto, data={"x": numbers(200, 4)}, engine="torch", steps=2, **options)
    for report in (tuned.report, osp.verify(tuned.model, **options).report):
        assert bool(training) == any("'norm', Dropout 'drop'): it normalizes by" in note for note in report.notes)


@pytest.mark.parametrize("choice", [True, False])
def test_a_choice_is_a_child_module_that_is_handed_what_it_reads(choice: bool) -> None:
    then = graph([make_node("MatMul", ["h", "w"], ["t"])], [], ["t"])
    other = graph([make_node("MatMul", ["h", "own"], ["o"])], [], ["o"], {"own": numbers(4, 5, seed=9)})
    nodes = [
        make_node("Relu", ["x"], ["h"]),
        make_node("If", ["c"], ["i"], then_branch=then, else_branch=other),
        make_node("MatMul", ["i", "v"], ["y"]),
    ]
    feeds = {**X, "c": np.array(choice)}
    module = assert_same(model(nodes, feeds, {"w": W, "v": V}), feeds)
    assert parameters(module) == {"w", "v", "If_i.else_branch.own"}
    apply(module, feeds)[0].sum().backward()
    own = dict(module.named_parameters())["If_i.else_branch.own"]
    assert (module.w.grad is None) != choice
    assert (own.grad is None) == choice


def test_a_choice_between_weights_makes_both_parameters() -> None:
    branches = {
        name: graph([make_node("Constant", [], [name], value=numpy_helper.from_array(one))], [], [name])
        for name, one in (("then", W), ("other", -W))
    }
    choice = make_node("If", ["c"], ["w"], then_branch=branches["then"], else_branch=branches["other"])
    feeds = {**X, "c": np.array(True)}
    module = assert_same(model([choice, make_node("MatMul", ["x", "w"], ["y"])], feeds), feeds)
    assert len(parameters(module)) == 2


def loop() -> Any:
    info = helper.make_tensor_value_info
    inputs = [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("h", TensorProto.FLOAT, None),
              info("kept", TensorProto.FLOAT, None)]  # fmt: skip
    body = graph(
        [
            make_node("MatMul", ["h", "kept"], ["m"]),
            make_node("Add", ["m", "bias"], ["s"]),
            make_node("Tanh", ["s"], ["n"]),
            make_node("Identity", ["go"], ["goes"]),
            make_node("Identity", ["kept"], ["keeps"]),
            make_node("ReduceSum", ["n"], ["total"], keepdims=0),
        ],
        inputs,
        ["goes", "n", "keeps", "total"],
    )
    return make_node("Loop", ["count", "", "x", "square"], ["y", "same", "totals"], body=body)


def test_a_loop_runs_its_body_and_trains_what_it_hands_on() -> None:
    stored = {"square": numbers(4, 4, seed=1), "bias": numbers(4), "count": np.array(3)}
    module = assert_same(model([loop()], X, stored, outputs=["y", "totals"]), X)
    assert parameters(module) == {"square", "bias"}
    apply(module, X)[0].sum().backward()
    assert bool(module.square.grad.abs().sum() > 0)


def test_a_scan_steps_through_slices() -> None:
    info = helper.make_tensor_value_info
    body = graph(
        [make_node("MatMul", ["h", "w"], ["m"]), make_node("Add", ["m", "s"], ["n"]), make_node("Relu", ["n"], ["o"])],
        [info("h", TensorProto.FLOAT, None), info("s", TensorProto.FLOAT, None)],
        ["n", "o"],
    )
    node = make_node(
        "Scan", ["first", "x"], ["last", "all"], body=body, num_scan_inputs=1,
        scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1],
    )  # fmt: skip
    feeds = {"first": numbers(2, 4), "x": numbers(2, 6, 4, seed=5)}
    module = assert_same(model([node], feeds, {"w": numbers(4, 4, seed=1)}, outputs=["last", "all"]), feeds)
    assert parameters(module) == {"w"}


def test_local_functions_are_written_out_where_they_are_called() -> None:
    function = helper.make_function(
        "mine", "linear", ["a", "b"], ["c"],
        [
            helper.make_node("MatMul", ["a", "b"], ["m"]),
            helper.make_node("LeakyRelu", ["m"], ["c"], alpha=None),
        ],
        [helper.make_opsetid("", 17)], ["slope"],
    )  # fmt: skip
    function.node[1].attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    nodes = [
        make_node("linear", ["x", "w"], ["a"], domain="mine", slope=0.3),
        make_node("linear", ["a", "v"], ["y"], domain="mine", slope=0.7),
    ]
    module = assert_same(model(nodes, X, {"w": W, "v": V}, functions=[function]), X)
    assert parameters(module) == {"w", "v"}


def test_shapes_stay_open() -> None:
    nodes = [
        make_node("Shape", ["x"], ["s"]),
        make_node("Gather", ["s", "first"], ["n"]),
        make_node("Concat", ["n", "rest"], ["to"], axis=0),
        make_node("Reshape", ["x", "to"], ["y"]),
    ]
    stored = {"first": np.array([0]), "rest": np.array([2, -1])}
    proto = model(nodes, X, stored)
    for rows in (1, 3, 7):
        feeds = {"x": numbers(rows, 4)}
        assert apply(assert_same(proto, feeds), feeds)[0].shape == (rows, 2, 2)


def test_an_old_model_with_attributes_for_inputs() -> None:
    nodes = [
        make_node("Add", ["x", "b"], ["a"], broadcast=1, axis=1),
        make_node("Clip", ["a"], ["c"], min=-0.5, max=1.0),
        make_node("Unsqueeze", ["c"], ["u"], axes=[1]),
        make_node("Softmax", ["u"], ["p"], axis=1),
        make_node("Slice", ["p"], ["y"], starts=[1], ends=[9], axes=[0]),
    ]
    (y,) = apply(to_module(model(nodes, X, {"b": numbers(4)}, opset=6)), X)
    x = np.clip(X["x"] + numbers(4), -0.5, 1).astype(np.float64)
    wanted = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    assert np.allclose(y.detach().numpy(), wanted[1:, None], atol=1e-6)


def two_layers() -> Any:
    nodes = [make_node("Gemm", ["x", "fc.w", "fc.b"], ["h"]), make_node("Relu", ["h"], ["r"]),
             make_node("MatMul", ["r", "v"], ["y"])]  # fmt: skip
    return model(nodes, X, {"fc.w": W, "fc.b": numbers(5), "v": V})


def test_a_module_can_be_copied_saved_printed_and_filled() -> None:
    module = assert_same(two_layers(), X)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        module.v.mul_(2)
    assert not torch.equal(module.v, twin.v)
    assert twin.onnx_names == module.onnx_names
    twin.load_state_dict(module.state_dict())
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (twin, loaded):
        assert torch.equal(apply(other, X)[0], apply(module, X)[0])
        assert other.onnx_names == module.onnx_names
    assert "Gemm" in module.code
    assert [node.meta["onnx"][0] for node in module.graph.nodes if "onnx" in node.meta] == ["Gemm", "Relu", "MatMul"]


def test_it_runs_in_mixed_precision() -> None:
    nodes = [
        make_node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1]),
        make_node("ConvTranspose", ["c", "t"], ["u"], strides=[2]),
        make_node("Transpose", ["u"], ["s"], perm=[2, 0, 1]),
        make_node("LSTM", ["s", "w", "r"], ["l"], hidden_size=3),
        make_node("Squeeze", ["l", "one"], ["f"]),
        make_node("LayerNormalization", ["f", "scale"], ["n"]),
        make_node("MatMul", ["n", "m"], ["y"]),
    ]
    stored = {"k": numbers(4, 2, 3), "b": numbers(4), "t": numbers(4, 5, 2), "w": numbers(1, 12, 5),
              "r": numbers(1, 12, 3), "one": np.array([1]), "scale": numbers(3), "m": numbers(3, 6)}  # fmt: skip
    feeds = {"x": numbers(2, 2, 7)}
    module = assert_same(model(nodes, feeds, stored), feeds)
    with torch.autocast("cpu", torch.bfloat16):
        (y,) = apply(module, feeds)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(one.grad is not None for one in module.parameters())


def test_every_operator_that_is_not_known_is_named_before_anything_runs() -> None:
    inside = graph([make_node("StringNormalizer", ["x"], ["t"], name="low")], [], ["t"])
    other = graph([make_node("Identity", ["x"], ["o"])], [], ["o"])
    nodes = [
        make_node("Twist", ["x"], ["a"], name="one", domain="their.own"),
        make_node("Twist", ["a"], ["b"], name="two", domain="their.own"),
        make_node("If", ["c"], ["y"], then_branch=inside, else_branch=other),
    ]
    proto = model(nodes, {**X, "c": np.array(True)})
    with pytest.raises(ModelError) as caught:
        to_module(proto)
    text = str(caught.value)
    for part in ("StringNormalizer", "'low'", "their.own.Twist", "'one', 'two'", "extract_model"):
        assert part in text
    assert "\n" not in text


def test_an_attribute_that_is_not_known_is_named() -> None:
    with refusing(ModelError):
        to_module(model([make_node("Relu", ["x"], ["y"], name="odd", slope=1.0)], X))


def test_a_quantized_model_is_refused_in_one_line() -> None:
    nodes = [
        make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        make_node("MatMulInteger", ["q", "w", "z"], ["y"], name="mm"),
    ]
    with refusing(ModelError):
        to_module(model(nodes, X, {"w": np.ones((4, 4), np.uint8)}))


def test_what_onnxruntime_saved_for_one_processor_is_refused_in_one_line() -> None:
    node = make_node("ReorderInput", ["x"], ["y"], domain="com.microsoft.nchwc", name="blocks")
    with refusing(ModelError):
        to_module(model([node], X))


@pytest.mark.parametrize("opset", [5, 40])
def test_an_opset_out_of_reach_is_refused(opset: int) -> None:
    with pytest.raises(ModelError, match=f"opset {opset}; torch takes 6 to"):
        to_module(model([make_node("Relu", ["x"], ["y"])], X, opset=opset))


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    library.torch.cache_clear()
    monkeypatch.setattr(library, "available", lambda: False)
    with refusing(MissingExtraError):
        osp.torch.to_module(two_layers())
    library.torch.cache_clear()


def test_nothing_waits_for_torch_before_it_is_needed() -> None:
    code = "import sys, onnxsparse as osp; osp.torch.to_module; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0


def test_fused_operators_hold_weights() -> None:
    nodes = [make_node("FusedMatMul", ["x", "w"], ["a"], domain=MICROSOFT), make_node("Relu", ["a"], ["y"])]
    assert parameters(assert_same(model(nodes, X, {"w": W}), X)) == {"w"}


# -- what torch cannot compute, in one line


@pytest.mark.parametrize(("place", "told"), [(4, "there is no 4"), (-5, "there is no -5")])
@pytest.mark.parametrize("copied", [False, True])
def test_places_beyond_a_table_are_told(place: int, told: str, copied: bool) -> None:
    nodes = [
        make_node("Cast", ["x"], ["ids"], to=TensorProto.INT64),
        make_node("Gather", ["w", "ids"], ["y"], name="look"),
    ]
    net = to_module(model(nodes, {"x": np.array([[0]], np.int32)}, {"w": W}))
    net = copy.deepcopy(net) if copied else net
    assert net(torch.tensor([[3, -4]], dtype=torch.int32)).shape == (1, 2, 5)
    with pytest.raises(ModelError, match=f"Gather 'look' .* 'x' in the table 'w', which has 4 rows.*{told}") as error:
        net(torch.tensor([[3, place]], dtype=torch.int32))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("operator", ["Add", "Div", "Max"])
def test_arithmetic_of_whole_numbers_without_a_sign_is_told(dtype: Any, operator: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        make_node("Cast", ["x"], ["counts"], to=kind),
        make_node(operator, ["counts", "c"], ["s"], name="sum"),
        make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    net = to_module(model(nodes, X, {"c": np.array([3], dtype)}))
    with pytest.raises(ModelError, match=f"torch has no {operator} of {np.dtype(dtype).name}, as in {operator} 'sum'"):
        net(torch.ones(2, 3))


def test_other_errors_stay_torch_s_own() -> None:
    net = to_module(model([make_node("MatMul", ["x", "w"], ["y"])], X, {"w": W}))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        net(torch.ones(3, 7))
