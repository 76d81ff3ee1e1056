"""Recipes: writing and reading back, short patterns, and refusal of hostile files."""

from __future__ import annotations

from pathlib import Path

import pytest
from infeng_convert.interfaces.calibrators import Text
from infeng_convert.recipes import EVERY, MAX_NODES, Recipe, parse, patterns, read

from infeng_core.errors import UsageError

SHA = "0123456789abcdef" * 4
LAYERS = [f"layers.{i}.{name}" for i in range(3) for name in ("qkv_proj", "o_proj", "down_proj")]


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("small", {EVERY: "int4-p32", "embed": "int8-row"}),
        Recipe("balanced", {EVERY: "a", "layers.*.x": "b", "layers.0.x": "c"}, "gptq", Text("file", 16384, SHA), 5.25),
    ],
)
def test_a_written_recipe_is_read_back_in_order(recipe: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(recipe.written())
    made = read(path)
    assert made == recipe and list(made.formats) == list(recipe.formats) and made.written() == recipe.written()


def test_patterns_are_short_where_layers_are_alike_and_give_every_tensor_its_format() -> None:
    formats = {"embed": "int8-row"} | dict.fromkeys(LAYERS, "int4-p32")
    assert patterns(formats) == {EVERY: "int4-p32", "embed": "int8-row"}
    formats |= {"layers.1.o_proj": "int6-p32"} | {f"layers.{i}.down_proj": "int5-p32" for i in range(3)}
    short = patterns(formats)
    assert short == {
        EVERY: "int4-p32",
        "embed": "int8-row",
        "layers.*.down_proj": "int5-p32",
        "layers.1.o_proj": "int6-p32",
    }
    assert {name: Recipe("", short).choice.of(name) for name in formats} == formats


def test_a_pattern_that_would_reach_too_far_is_written_out() -> None:
    formats = {"layers.0.a.x": "one", "layers.1.a.x": "two", "layers.0.x": "two", "layers.1.x": "two", "y": "one"}
    formats |= {"z": "one", "w": "one"}
    assert {name: Recipe("", patterns(formats)).choice.of(name) for name in formats} == formats
    assert "layers.*.x" not in patterns(formats)


GOOD = f"""infeng_recipe: 1
profile: small
quantizer: gptq
budget: 5.25
text: {{source: auto, tokens: 16384, sha256: {SHA}}}
formats: {{"*": int4-p32, embed: int8-row}}
"""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("infeng_recipe: 1", "infeng_recipe: 2", "infeng_recipe is not 1: update infeng"),
        ("infeng_recipe: 1", "recipe: 1", "infeng_recipe is missing"),
        ("profile: small", "profile: [small]", r"profile is \['small'\], it must be a string"),
        ("profile: small", "profile: ''", "profile' is '', which is no name"),
        ("quantizer: gptq", "quantizer: null", "quantizer is null"),
        ("quantizer: gptq", 'quantizer: "a\\nb"', "which is no name"),
        ("quantizer: gptq", "quantizers: gptq", "'quantizers' is not a known key"),
        ("budget: 5.25", "budget: .nan", "budget is nan, it must be from 1 to 64"),
        ("budget: 5.25", "budget: 1.0e+99", "budget is 1e[+]99, it must be from 1 to 64"),
        ("budget: 5.25", "budget: true", "budget is True, it must be a number"),
        ("source: auto", "source: web", "text.source is 'web', not one of auto, file"),
        ("tokens: 16384", "tokens: 0", "text.tokens is 0"),
        (SHA, SHA.upper(), "text.sha256 is '0123.*, it must be a sha256"),
        (SHA, "../../etc/passwd", "it must be a sha256"),
        ('"*": int4-p32', "x: int4-p32", "formats.'[*]' is missing"),
        ("embed: int8-row", "embed: 8", "formats.embed is 8, it must be a string"),
        ("embed: int8-row", "embed: {a: b}", "formats.embed is"),
        ("embed: int8-row", f"{'x' * 201}: int8-row", "is no pattern of a tensor's name"),
        ("embed: int8-row", f"embed: {'x' * 201}", "which is no name"),
        ("embed: int8-row", "embed: a, embed: b", "given twice"),
        ("embed: int8-row", "embed: &x int8-row", "anchors and aliases are not read"),
        ("embed: int8-row", "embed: !!python/name:os.system x", "tag"),
        (GOOD, "", "is not a mapping"),
        (GOOD, "[" * 10_000, "nested"),
        (GOOD, "- 1\n" * (MAX_NODES + 1), "too many"),
        (GOOD, "a: b: c", "mapping values are not allowed"),
    ],
)
def test_a_hostile_recipe_is_refused_by_a_line_that_names_the_file(old: str, new: str, why: str) -> None:
    assert old in GOOD
    parse(GOOD, Path("given.yaml"))
    with pytest.raises(UsageError, match=why) as caught:
        parse(GOOD.replace(old, new), Path("given.yaml"))
    assert str(caught.value).startswith("given.yaml") and len(str(caught.value)) < 600


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a" * (5 << 20)])
def test_a_file_that_is_no_text_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"recipe\.yaml"):
        read(path)
