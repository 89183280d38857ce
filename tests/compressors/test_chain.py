"""Methods as lines, dictionaries, JSON and objects: all say the same, and what makes no sense is refused."""

import json
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from cases import in_turn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from methods import IN_LOCAL_STEPS, METHODS
from pydantic import BaseModel, TypeAdapter, ValidationError

from taugrad.compressors import methods
from taugrad.compressors.fields import RULES, Tau
from taugrad.compressors.methods import chain, read_config
from taugrad.compressors.methods.base import Exempt
from taugrad.compressors.methods.entropy import Entropy
from taugrad.compressors.methods.parsing import parse
from taugrad.compressors.methods.quantizers import Float16, Quantile
from taugrad.compressors.methods.sparse import Clip
from taugrad.compressors.methods.topk import TopK
from taugrad.compressors.ops.interface import LARGEST_TAU, SMALLEST_TAU
from taugrad.compressors.thresholds.density import DensityTau, Warmup
from taugrad.compressors.thresholds.layers import LayeredTau
from taugrad.compressors.thresholds.schedule import ScheduledTau

ADAPTER: TypeAdapter[Any] = TypeAdapter(methods.CompressorConfig)

# Any configuration, as a dictionary of the fields that are given.


def some_of(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of a model's fields, each within its own bounds, and those that must be given."""
    values = {
        name: any_of(model_field.annotation, *model_field.metadata)
        for name, model_field in model.model_fields.items()
    }
    if "chunk" in values:
        values["chunk"] = st.integers(1, 16).map(lambda bits: 2**bits) | values["chunk"]
    needed = [
        name
        for name, model_field in model.model_fields.items()
        if name == "kind" or model_field.is_required()
    ]
    required = {name: values.pop(name) for name in needed}
    return st.fixed_dictionaries(required, optional=values)


def any_of(kind: Any, *bounds: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    origin, arguments = get_origin(kind), get_args(kind)
    strategy: st.SearchStrategy[Any]
    if origin is Annotated:
        inner = [more for argument in arguments[1:] for more in getattr(argument, "metadata", [argument])]
        strategy = any_of(arguments[0], *inner, *bounds)
    elif origin is Literal:
        strategy = st.sampled_from(arguments)
    elif origin in (Union, UnionType):
        strategy = st.one_of([any_of(argument) for argument in arguments])
    elif origin is dict:
        strategy = st.dictionaries(*map(any_of, arguments), min_size=1, max_size=3)
    elif origin is tuple:
        strategy = st.lists(any_of(arguments[0]), max_size=3).map(tuple)
    elif issubclass(kind, BaseModel):
        strategy = some_of(kind)
    elif kind is float and Tau.__metadata__[0] in bounds:
        strategy = st.floats(SMALLEST_TAU, LARGEST_TAU)
    elif kind in (int, float):
        limits = [
            (name, bound) for bound in bounds for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)
        ]
        strategy = numbers(kind, {name: getattr(limit, name) for name, limit in limits})
    else:
        text = st.text(st.characters(codec="utf-8"), max_size=8)
        strategy = {bool: st.booleans(), str: text, type(None): st.none()}[kind]
    return strategy


def numbers(kind: type, bounds: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Within the bounds of annotated_types."""
    low, high = bounds.get("ge", bounds.get("gt", 0)), bounds.get("le", bounds.get("lt", 10**9))
    if kind is int:
        return st.integers(low + ("gt" in bounds), high - ("lt" in bounds))
    return st.floats(low, high, exclude_min="gt" in bounds, exclude_max="lt" in bounds)


def fit(given: dict[str, Any]) -> bool:
    """Whether fields go together, by docs/methods and not by the models."""
    kind, codec, symbols = (given.get(name, "auto") for name in ("kind", "codec", "symbols"))
    quantizer = given.get("quantize", {"kind": "quantile"} if kind == "chunked_topk" else None)
    if kind in ("wgt", "topk", "chunked_topk", "random_k", "visible"):
        has_symbols = quantizer is not None and quantizer["kind"] not in ("fp16", "bf16")
        if (symbols != "auto" and not has_symbols) or (codec == "raw" and quantizer is not None):
            return False
    if kind == "qgt" and codec == "raw" and symbols != "auto":
        return False
    chunk = given.get("chunk", 4096)
    if kind == "chunked_topk" and (chunk & (chunk - 1) or given.get("keep", 64) > chunk):
        return False
    density = given.get("target", given.get("density", 0))
    if given.get("warmup") is not None and given["warmup"].get("start", 0.25) < density:
        return False
    block, bits = given.get("block", 2048), given.get("bits", 8)
    has_long_tables = kind == "quantile" and 0 < block < 2**bits / 4
    if has_long_tables or (kind == "dl4j" and given.get("low", 1e-4) > given.get("high", 1e-2)):
        return False
    return all(fit(gradients) for gradients in given.values() if isinstance(gradients, dict))


def test_what_is_equal_has_one_hash() -> None:
    zeros = [read_config(f"wgt(1, decay={zero})") for zero in (0.0, -0.0)]
    assert zeros[0] == zeros[1]
    assert hash(zeros[0]) == hash(zeros[1])


@settings(max_examples=400)
@example({"kind": "wgt", "tau": 1.0, "decay": -0.0})
@given(st.one_of([some_of(rule) for rule in RULES.values()]))
def test_line_dictionary_json_and_repr_say_the_same(given_fields: dict[str, Any]) -> None:
    if not fit(given_fields):
        with pytest.raises(ValueError, match=r"."):
            read_config(given_fields)
        return
    method = read_config(given_fields)
    dumped = method.model_dump()
    for name, value in given_fields.items():
        if not isinstance(value, dict):
            assert dumped[name] == value
    others = [
        read_config(str(method)),
        eval(repr(method), {"chain": chain}),
        read_config(dumped),
        ADAPTER.validate_json(method.model_dump_json()),
        ADAPTER.validate_python(json.loads(json.dumps(method.model_dump(mode="json")))),
        read_config(method),
    ]
    for other in others:
        assert type(other) is type(method)
        assert other == method
        assert hash(other) == hash(method)
        assert other.model_dump_json() == method.model_dump_json()
        assert str(other) == str(method)
    with pytest.raises(ValidationError, match="frozen"):
        method.reduction = "sum"


LINES = {
    "wgt(1e-3)": "wgt(tau=0.001)",
    "wgt(tau=1e-3) | quantile(8, block=2048) | golomb_rice": "wgt(tau=0.001) | quantile | golomb_rice",
    "  strom( 1e-3 )|golomb_rice ": "strom(tau=0.001) | golomb_rice",
    "wgt(1e-3, codec='bitmap')": "wgt(tau=0.001) | bitmap",
    "wgt(1e-3, quantize={'kind': 'linear', 'bits': 4})": "wgt(tau=0.001) | linear(bits=4)",
    "qgt(1e-3, symbols='raw')": "qgt(tau=0.001, symbols='raw')",
    "chunked_topk | quantile(2)": "chunked_topk",
    "chunked_topk(quantize=None) | chunked": "chunked_topk(quantize=None) | chunked",
    "bgt('density(0.01)')": "bgt(tau=density(target=0.01))",
    "bgt(schedule({9: 0.2, 0: 0.1}, between='step'))": (
        "bgt(tau=schedule(points={0: 0.1, 9: 0.2}, between='step'))"
    ),
    "bgt(layers(0.1, patterns={'b': density(0.2)}), clip=clip(3))": (
        "bgt(tau=layers(default=0.1, patterns={'b': density(target=0.2)}), clip=clip(every=3))"
    ),
    "linear(exempt=exempt(names=['*.bias'], smaller_than=9))": (
        "linear(exempt=exempt(smaller_than=9, names=('*.bias',)))"
    ),
    "topk(1)": "topk(density=1)",
    "fp8(0)": "fp8(block=0)",
    "bgt(1, clip=clip())": "bgt(tau=1, clip=clip())",
    "bgt(sidco(0.1, stages='auto'))": "bgt(tau=sidco(target=0.1))",
}


@in_turn(("written", "line"), LINES.items())
def test_a_line_leaves_out_what_is_default(written: str, line: str) -> None:
    assert str(read_config(written)) == line


# What makes no sense.


def reason(value: Any) -> str:
    """What a configuration is refused for."""
    with pytest.raises(ValueError, match=r".") as refusal:
        read_config(value)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def name_of(link: str) -> str:
    return link.partition("(")[0]


IMPOSSIBLE = [
    ("wgt(1) | topk(0.1)", "starts a chain"),
    ("none | wgt(1)", "starts a chain"),
    ("bgt(1) | linear", "nothing is left for"),
    ("strom(1) | fp16", "nothing is left for"),
    ("qgt(1) | quantile", "quantized already"),
    ("linear | entropy", "only what a sparse rule selected"),
    ("powersgd | fp8", "only what a sparse rule selected"),
    ("topk(0.1) | huffman", "sends floats"),
    ("wgt(1) | golomb_rice | raw", "sends floats"),
    ("wgt(1) | bf16 | huffman", "sends floats"),
    ("strom(1) | huffman", "sends none"),
    ("bgt(1) | bitmap | raw", "sends none"),
    ("fp16 | packed32", "has only one form"),
    ("none | huffman", "has only one form"),
    ("fp8 | chunked", "sends every element"),
    ("entropy | golomb_rice", "sends every element"),
    ("topk(0.1) | chunked", "no chunks"),
    ("qgt(1) | chunked", "no chunks"),
    ("wgt(1) | linear | raw", "no bin for the zeros"),
    ("chunked_topk | raw", "choose packed32, bitmap, golomb_rice, chunked"),
    ("qgt(1) | raw | huffman", "writes values and positions at once"),
    ("wgt(1) | linear | quantile", "in this order"),
    ("wgt(1) | golomb_rice | linear", "in this order"),
    ("wgt(1) | linear | huffman | golomb_rice", "in this order"),
    ("linear | huffman | huffman", "in this order"),
]


@in_turn(("line", "why"), IMPOSSIBLE)
def test_links_that_do_not_fit_are_refused_with_both_names(line: str, why: str) -> None:
    *_, before, last = line.split(" | ")
    said = reason(line)
    assert why in said
    assert name_of(last) in said
    assert name_of(before) in said or name_of(line) in said


@in_turn(
    ("line", "why"),
    [
        ("wqt(1)", "wqt is unknown: choose none, powersgd, wgt"),
        ("wgt(1) | zip", "zip is unknown: choose"),
        ("golomb_rice", "a chain starts with a method (none, powersgd, wgt"),
        ("huffman | wgt(1)", "not with huffman"),
        ("wgt(1) | golomb_rice(3)", "golomb_rice has no fields"),
        ("wgt(1, foo=3)", "wgt.foo: no such field; there are reduction, "),
        ("wgt", "wgt.tau: is missing"),
        ("wgt(1, tau=2)", "tau is given twice"),
        ("wgt(1, codec='raw') | raw", "codec is given twice: as a field of wgt and as raw"),
        ("chunked_topk(quantize=None) | linear", "quantize is given twice"),
        ("wgt(1, 2)", "wgt takes one field without a name"),
        ("none(1)", "none takes its fields as name=value"),
        ("wgt(1, kind='bgt')", "kind is given twice"),
        ("density(0.1)", "density is not a link, but a value"),
        ("wgt(1, clip=warmup(3))", "warmup(...) is a value of the field warmup, not of clip"),
        ("wgt(layers(layers(1, patterns={'a': 1}), patterns={'a': 1}))", "default"),
        ("wgt(schedule({-1: 1}))", "iterations count from 0, -1 is before that"),
        ("wgt('nonsense(')", "not a policy with its fields in brackets: schedule, density"),
        ("entropy(density(0.1))", "floor"),
        ("qgt(1, symbols='huffman', codec='raw')", "huffman cannot follow raw"),
        ("chunked_topk(chunk=100)", "chunk = 100 is not a power of two"),
        ("chunked_topk(chunk=32)", "keep = 64 is more than a chunk has (32)"),
        ("topk(0.5, warmup=warmup(9))", "start 0.25 is below the density 0.5"),
        ("wgt(density(0.3, warmup=warmup(9)))", "start 0.25 is below the density 0.3"),
        ("wgt(0)", "wgt.tau = 0: must be greater than 0 ("),
        ("wgt(sidco(0))", "greater than 0"),
        ("wgt(sidco(0.1, fit='normal'))", "exponential"),
        ("wgt(dl4j(low=0.1))", "low = 0.1 is above high = 0.01"),
        ("wgt(dl4j(decay=1))", "less than 1"),
        ("wgt(layers(1, patterns={'a': allocate(0.1)}))", "allocate"),
        ("wgt(layers(dl4j(), patterns={'a': 1}))", "dl4j"),
        ("wgt(1e400)", "is not a threshold that float32 can hold"),
        ("wgt(1, clip=clip(1, to=1e400))", "finite"),
        ("", "is not a chain such as"),
        ("wgt(1) |", "is not a chain such as"),
        ("wgt(1) + raw", "is not a link of a chain"),
    ],
)
def test_what_is_no_chain_is_refused_with_a_reason(line: str, why: str) -> None:
    assert why in reason(line)


# Nothing of a line is ever run.


@in_turn(
    "expression",
    [
        "trap()",
        "[trap() for _ in (1,)]",
        "(lambda: trap())()",
        "f'{trap()}'",
        "2 ** 2 ** 40",
        "{'a': trap()}",
        "density(trap())",
    ],
)
def test_a_line_is_read_and_not_executed(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setitem(__builtins__, "trap", lambda: called.append(1))  # type: ignore[arg-type]
    for line in (f"wgt(tau={expression})", f"wgt(1) | {expression}", expression, f"wgt({expression})"):
        with pytest.raises(ValueError, match=r"."):
            read_config(line)
    assert called == []


@in_turn(
    "line",
    [
        "(" * 100_000,
        "wgt(" * 900 + ")" * 900,
        "wgt(tau=" + "-" * 9_000 + "1)",
        "wgt(1)" + " | raw" * 50_000,
        "wgt(tau=" + "9" * 9_000 + ")",
        "wgt(layers(1, patterns=" + "{'a': " * 80 + "1" + "}" * 80 + "))",
        "a" * 10**6,
        "wgt(1)\0",
        "wgt(\ud800)",
    ],
)
def test_monstrous_lines_are_refused_with_a_short_message(line: str) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        read_config(line)
    assert len(str(refusal.value)) < 10_500


words = st.sampled_from(["wgt", "linear", "raw", "huffman", "tau", "density", " | ", *"()1=,{}*'-:"])


@given(st.text(max_size=60) | st.lists(words, max_size=14).map("".join))
def test_any_text_is_a_method_or_refused(text: str) -> None:
    try:
        method = read_config(text)
    except ValueError:
        return
    assert read_config(str(method)) == method


# From objects.


def test_a_chain_of_objects_is_the_chain_of_its_line() -> None:
    tau = LayeredTau(default=ScheduledTau(points={0: 0.1}), patterns={"a": DensityTau(target=0.5)})
    qgt = methods.QuantizedGradient(tau=tau, clip=Clip(every=2), exempt=Exempt(names=("b",)))
    assert chain(qgt, "huffman") == read_config(
        "qgt(layers(schedule({0: 0.1}), patterns={'a': density(0.5)}), clip=clip(2), "
        "exempt=exempt(names=['b'])) | huffman"
    )
    topk = TopK(density=0.1, warmup=Warmup(iterations=5))
    assert chain(topk, Float16()) == read_config("topk(0.1, warmup=warmup(5)) | fp16")
    line = "wgt(1e-3) | entropy(5) | golomb_rice | huffman"
    assert chain("wgt(1e-3)", Entropy(floor=5), "golomb_rice | huffman") == read_config(line)
    refused: dict[str, tuple[BaseModel | str, ...]] = {
        "a chain without links": (),
        "strom starts a chain and cannot follow huffman": (Quantile(), "huffman", methods.Strom(tau=1)),
        "codec is given twice": (methods.WholeGradient(tau=1, codec="raw"), "bitmap"),
        "starts with a method": (Clip(), "raw"),
    }
    for why, links in refused.items():
        with pytest.raises(ValueError, match=why):
            chain(*links)


def test_methods_of_different_lines_are_not_equal() -> None:
    assert len({read_config(line) for line in METHODS for _ in range(2)}) == len(METHODS)


def test_every_method_has_a_line_to_test() -> None:
    with pytest.raises(ValueError, match="starts with a method") as refusal:
        parse("raw")
    offered = str(refusal.value).partition("(")[2].partition(")")[0].split(", ")
    kinds = {name_of(line.partition(" ")[0]) for line in [*METHODS, *IN_LOCAL_STEPS]}
    assert kinds == set(RULES) == set(offered)
