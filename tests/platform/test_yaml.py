"""YAML 1.2 in specs, on the command line and in the environment: text stays text, numbers are numbers."""

import math
from pathlib import Path

import pytest
import yaml
from cases import in_turn

from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.yaml_file import dump_yaml, parse_yaml, read_yaml

ODD = ["61e9540", "1e3", "2026-11-25", "123456", "0123", "010", "1:30", "1_000", "0x1F", "0o17", ".5", "1.10"]
ODD += ["+1", "no", "yes", "on", "off", "y", "true", "True", "FALSE", "null", "~", ".inf", ".NaN", "<<", "="]
"""What YAML 1.1 or 1.2 takes for something else than text."""


@in_turn("text", ODD)
@in_turn("quoted", ["{}", "'{}'", "!!str {}"])
def test_a_name_is_the_text_as_written(read, text, quoted):
    written = quoted.format(text)
    data = f"{{kind: parquet, path: a, input: [a, {written}], label: {written}}}"
    spec = read(f"name: {written}\nexperiment: {written}\nstorage: {written}\ndata: {data}")
    assert (spec.name, spec.experiment, spec.storage, spec.data.label) == (text, text, Path(text), text)
    if written not in ("null", "~"):  # None, where a field of that name may be None
        assert spec.data.input == ("a", text)


@in_turn("text", ODD)
def test_a_name_is_the_same_on_the_command_line_and_in_the_environment(read, text):
    given = ["--name", text, f"--experiment={text}", "--data.path", text]
    spec = read("data: {kind: text}", *given)
    path = None if text == "null" else Path(text)
    assert (spec.name, spec.experiment, spec.data.path) == (text, text, path)
    assert read("data: {kind: text}", "--data", f"{{path: ['{text}']}}").data.path == (Path(text),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAUGRAD_NAME", text)
        assert read("name: other").name == text


def test_an_argument_is_what_yaml_says_of_it(read, monkeypatch):
    arguments = (
        "{quoted: '1e3', double: \"010\", float: 1e3, small: 1e-3, int: 010, hex: 0x1F, octal: 0o17, "
        "yes: yes, true: True, half: .5, commit: 61e9540, day: 2026-11-25, time: 1:30, thousand: 1_000, "
        "5: five}"
    )
    meant = {"quoted": "1e3", "double": "010", "float": 1000.0, "small": 1e-3, "int": 10}
    meant |= {"hex": 31, "octal": 15, "yes": "yes", "true": True, "half": 0.5, "commit": "61e9540"}
    meant |= {"day": "2026-11-25", "time": "1:30", "thousand": "1_000", "5": "five"}
    fields = "kind: custom, factory: 'a:b'"
    monkeypatch.setenv("TAUGRAD_ALLOW_CUSTOM", "1")
    for spec in (
        read(f"data: {{{fields}, arguments: {arguments}}}"),
        read(f"data: {{{fields}}}", "--data.arguments", arguments),
        read(f"data: {{{fields}}}", f"--data={{{fields}, arguments: {arguments}}}"),
    ):
        assert repr(spec.data.arguments) == repr(meant)  # types, too
    monkeypatch.setenv("TAUGRAD_DATA__ARGUMENTS", arguments)
    assert read(f"data: {{{fields}}}").data.arguments == meant
    assert read(f"data: {{{fields}}}", "--data.arguments.int", "0x10").data.arguments == meant | {"int": 16}


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-3", 1e-3), (".5", 0.5), ("1.", 1.0), ("+2", 2.0), ("0o17", 15.0), ("0x1F", 31.0), ("010", 10.0)],
)
def test_numbers_are_those_of_the_core_schema(read, text, number):
    for spec in (
        read(f"training: {{optimizer: {{lr: {text}}}}}"),
        read("", "--training.optimizer.lr", text),
        read("", "--training.optimizer", f"{{lr: {text}}}"),
    ):
        assert spec.training.optimizer.lr == number


def test_what_is_written_is_read_back(tmp_path):
    texts = [*ODD, "1E5", "a: b", "# a", " a ", "", 'it\'s "here" now', "é…", "two\nlines", "- a", "*a"]
    tree = {"texts": texts, "numbers": [1e-5, 1e17, 3, -0.5, math.inf], "others": [True, False, None]}
    assert parse_yaml(dump_yaml(tree), []) == tree
    assert yaml.safe_load(dump_yaml(tree)) == tree  # readers of YAML 1.1 find the same
    for text in ODD:
        spec = RunSpec.model_validate(
            {"name": text, "model": {"kind": "custom", "factory": "a:b", "arguments": {"a": text, "b": 1e-5}}}
        )
        path = tmp_path / "spec.yaml"
        path.write_text(dump_yaml(spec.model_dump(mode="json")))
        assert RunSpec.model_validate(read_yaml(path, RunSpec)) == spec


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, "aliases make more than 100,000 values of it"),
        ("name: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        *((f"seed: {digits}", f"seed = {digits[:50]}") for digits in ("9" * 5000, "1e999999")),
    ],
)
def test_what_is_too_much_is_refused_in_a_short_line(read, text, said):
    with pytest.raises(SpecError) as refusal:
        read(text)
    (problem,) = refusal.value.problems
    assert said in problem
    assert "\n" not in problem
    assert len(problem) < 300
