"""Which layers a quantization scheme means: by the names of layers and by module types."""

from __future__ import annotations

import pytest

from onnxsparse.errors import OptionError
from onnxsparse.math.quantization import Grid
from onnxsparse.planning.layer_kinds import kinds_of_node
from onnxsparse.planning.quantization import LayerScheme, Scheme

FEW = LayerScheme(weights=Grid(4))
MORE = LayerScheme(weights=Grid(6))
QUERY = "bert.encoder.layer.1.attention.self.query"
IN_GRAPH = "/bert/encoder/layer.1/attention/self/query/MatMul"
LINEAR = kinds_of_node("MatMul", 2)


@pytest.mark.parametrize("name", [QUERY, f"{QUERY}.weight", f"module.{QUERY}", IN_GRAPH])
@pytest.mark.parametrize("entry", [QUERY, "bert.encoder", "bert", "re:bert.*query", "Linear", "bert/encoder/layer.1"])
def test_a_layer_is_ignored_by_its_path_in_torch_and_in_a_graph(name: str, entry: str) -> None:
    assert Scheme(ignore=(entry,)).of([name], LINEAR) is None


OTHERS = ("bert.encoder.layer", "bert.enc", "encoder", "Conv2d", "re:encoder", "MatMulLeftInput_QK")


@pytest.mark.parametrize("entry", OTHERS)
def test_other_layers_are_not_ignored(entry: str) -> None:
    other = Scheme(ignore=(entry,)).of(["bert.encoder.layers.1.query"], LINEAR)
    assert other == LayerScheme()


def test_one_in_a_list_is_not_the_tenth() -> None:
    scheme = Scheme(ignore=("model.1",))
    assert [scheme.of([name]) for name in ("model.1.conv.weight", "/model/model.1/conv/Conv")] == [None, None]
    assert all(scheme.of([name]) for name in ("model.10.conv.weight", "/model/model.10/conv/Conv"))


def test_a_name_counts_more_than_a_type_and_the_longest_most() -> None:
    scheme = Scheme(overrides={"Linear": FEW, "bert": LayerScheme(inputs=None), "bert.encoder": MORE})
    assert scheme.of([QUERY], LINEAR) == MORE
    assert scheme.of(["bert.pooler"], LINEAR) == LayerScheme(inputs=None)
    assert scheme.of(["classifier"], LINEAR) == FEW
    assert scheme.of(["classifier"], ("Conv2d",)) == LayerScheme()
    assert scheme.asked(["classifier"], ("Conv2d",)) is None


def test_what_is_ignored_is_so_whatever_overrides_say() -> None:
    assert Scheme(overrides={QUERY: FEW}, ignore=("Linear",)).of([QUERY], LINEAR) is None


def test_only_some_submodules_are_quantized() -> None:
    scheme = Scheme(only=("bert.encoder", "qa_outputs"))
    assert scheme.of([IN_GRAPH], LINEAR)
    assert scheme.of(["qa_outputs.weight"], LINEAR)
    assert scheme.of(["bert.pooler.dense"], LINEAR) is None


@pytest.mark.parametrize(
    ("operator", "rank", "live", "classes"),
    [
        ("Gemm", 2, False, {"Linear", "Gemm"}),
        ("Conv", 4, False, {"Conv2d", "Conv"}),
        ("Conv", 3, False, {"Conv1d", "Conv"}),
        ("ConvTranspose", 5, False, {"ConvTranspose3d", "ConvTranspose"}),
        ("Gather", 2, False, {"Embedding", "Gather"}),
        ("Softmax", 0, True, {"Softmax"}),
        ("Einsum", 2, False, {"Einsum"}),
    ],
)
def test_operators_stand_for_module_types(operator: str, rank: int, live: bool, classes: set[str]) -> None:
    assert set(kinds_of_node(operator, rank, live)) == classes


def test_products_of_attention_are_known_by_the_modules_that_are_made_for_them() -> None:
    scores = kinds_of_node("MatMul", live=True, role="QK")
    assert Scheme(ignore=("QuantizableMatMul",)).of([], scores) is None
    assert Scheme(ignore=("MatMulRightInput_QK",)).of([], scores) is None
    assert Scheme(ignore=("MatMulRightInput_PV", "Linear")).of([], scores) == LayerScheme()
    assert Scheme(overrides={"BMMLeftInput_PV": FEW}).of([], kinds_of_node("MatMul", live=True)) == FEW


MODEL = [((QUERY,), LINEAR), (("classifier",), LINEAR)]


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        (Scheme(ignore=("clasifier",)), "ignore: 'clasifier' is no layer and no module type .* (did you mean cla"),
        (Scheme(overrides={"Linera": FEW}), "scheme_overrides: 'Linera' .*did you mean Linear"),
        (Scheme(overrides={"Linera": FEW}, called="targets"), "targets: 'Linera' .*did you mean Linear"),
        (Scheme(only=("bert.pooler",)), "submodules: 'bert.pooler'"),
    ],
)
def test_an_entry_that_means_nothing_is_said_or_refused(scheme: Scheme, words: str) -> None:
    (told,) = scheme.missed(MODEL)
    strict = Scheme(scheme.layers, scheme.overrides, scheme.ignore, scheme.only, True, called=scheme.called)
    with pytest.raises(OptionError, match=words.replace("(", "\\(")):
        strict.missed(MODEL)
    assert told.startswith(words.partition(":")[0])


def test_a_class_that_a_graph_cannot_show_may_be_ignored() -> None:
    scheme = Scheme(ignore=("LlamaRMSNorm", "bert"), strict=True)
    assert len(scheme.missed(MODEL, classes=False)) == 1
    with pytest.raises(OptionError, match="LlamaRMSNorm"):
        scheme.missed(MODEL)
    with pytest.raises(OptionError, match="lm_head"):
        Scheme(ignore=("lm_head",), strict=True).missed(MODEL, classes=False)


def test_patterns_that_are_none_are_refused() -> None:
    with pytest.raises(OptionError, match=r"re:\*bert is not a regular expression"):
        Scheme(ignore=("re:*bert",)).of([QUERY])
