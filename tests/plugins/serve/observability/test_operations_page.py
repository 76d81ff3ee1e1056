"""docs/operations.md lists the metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

import infeng_serve
from infeng_chat.rendering.renderer import LIMITS
from infeng_grammar.argument import MOST_BYTES
from infeng_serve.adapters import MOST_OWN
from infeng_serve.idempotency import MOST_CHARACTERS
from infeng_serve.observability.families import FAMILIES
from infeng_serve.observability.metrics import REASONS
from infeng_serve.protocol import bounds, counting
from infeng_serve.protocol.requests import MOST_REQUESTS
from infeng_serve.routes.embeddings import MOST as MOST_TEXTS

from infeng_core.api import EngineConfig
from infeng_core.plug.plugin import read_plugin
from infeng_core.record import entries
from infeng_core.requests import checks, request
from infeng_core.settings.config import default_of
from infeng_core.settings.schema import Size

PAGE = (Path(__file__).parents[4] / "docs/operations.md").read_text()


def test_the_table_of_metrics_is_the_code():
    rows = re.findall(
        r"^\| `(\w+)` \| (gauge|counter|histogram|summary|info) \| ([^|]*) \| (.*) \|$", PAGE, re.MULTILINE
    )
    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows}
    assert listed == {one.name: (one.kind, one.labels, one.help) for one in FAMILIES.values()}


def test_metrics_named_elsewhere_on_the_page_exist():
    said = set(re.findall(r"`(\w+_(?:total|seconds|perc|info|running|waiting|count))[`{]", PAGE))
    assert len(said) > 30 and {name.removesuffix("_count") for name in said} <= FAMILIES.keys()


def test_the_reasons_for_which_requests_end_are_listed():
    assert f"Reasons of `request_success_total`: {', '.join(f'`{reason}`' for reason in REASONS)};" in PAGE


def test_the_defaults_of_limits_are_those_of_the_settings():
    rows = re.findall(r"^\| `(serve|scheduler|adapters|kv_cache)\.(\w+)` \| (\S+) \|", PAGE, re.MULTILINE)
    assert len(rows) > 15
    serve = read_plugin(Path(infeng_serve.__file__).with_name("plugin.yaml")).settings
    core = {name: one.made_default() for name, one in entries(EngineConfig).items()}
    for section, name, default in rows:
        made = serve[name] if section == "serve" else entries(type(core[section]))[name]
        kind = made.metadata["kind"]
        wanted = kind.parse(default) if isinstance(kind, Size) else int(default) if default.isdigit() else default
        assert default_of(made) == wanted, (section, name)


def test_the_fixed_limits_are_those_of_the_code():
    told = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| (?:400|counted)", PAGE, re.MULTILINE))
    for what, numbers in {
        "prompts x `n` of a call": (MOST_REQUESTS,),
        "values, texts, and arrays or objects of a body": counting.MOST,
        "messages, items of an `input`": (bounds.MOST_MESSAGES,),
        "`tools`": (bounds.MOST_TOOLS,),
        "`adapters` of a call": (bounds.MOST_ADAPTERS,),
        "`logit_bias`, `stop_token_ids`": (bounds.MOST_BIASES,),
        "`allowed_token_ids`": (bounds.MOST_ALLOWED,),
        "tokens that those and `bad_words` name, x requests": (bounds.MOST_NAMED,),
        "entries of another list or object": (bounds.MOST_ITEMS,),
        "characters of another text": (bounds.MOST_CHARACTERS,),
        "texts of a call of /v1/embeddings": (MOST_TEXTS,),
        "characters of a prompt": (bounds.CHARACTERS_PER_TOKEN,),
        "`stop`, `dry_sequence_breakers`": (checks.MOST_STOPS, checks.MOST_STOP_CHARACTERS),
        "`logprobs`, `top_logprobs`, `prompt_logprobs`": (request.MOST_LOGPROBS,),
        "`bad_words`": (checks.MOST_BAD_WORDS, checks.MOST_BAD_TOKENS),
        "a schema or grammar": (MOST_BYTES,),
        "rendering a chat template": (int(LIMITS.seconds), LIMITS.memory >> 20, LIMITS.output),
        "adapters that one tenant has loaded": (MOST_OWN,),
        "`Idempotency-Key`": (MOST_CHARACTERS,),
    }.items():
        assert tuple(map(int, re.findall(r"\d+", told[what]))) == numbers, what
