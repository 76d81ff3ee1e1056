"""Requests that try to occupy a server, and the delays that they cause for another tenant.

``python tests/attacks.py URL VICTIM_KEY ATTACKER_KEY [--pid PID] [--only NAME]`` sends each attack six times at once to
a server while the victim requests two tokens repeatedly. It prints a table with the victim's longest wait and the
processor time of the server until all calls are answered. tests/plugins/serve/test_attacks.py sends them too.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

MB = 1 << 20
MOST = 16 * MB - 4096
"""Size of the largest bodies in bytes, a little less than ``serve.max_body``."""

TOGETHER = 6
"""Concurrent calls of an attack; ``--together`` overrides it."""

PROSE = "Once upon a time, there was a little girl who lived in a village near the forest. "


@dataclass(frozen=True)
class Attack:
    """A call."""

    name: str
    path: str
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict)


def filled(before: str, item: str, after: str, size: int = MOST) -> bytes:
    """Return a body of at most ``size`` bytes: a beginning, as many items as fit, an end."""
    room = size - len(before.encode()) - len(after.encode()) - 1
    items = item * (room // len(item.encode()))
    return (before + items.removesuffix(",") + after).encode()


def attacks() -> Iterator[Attack]:
    """Yield all attacks."""
    completions, chat, responses = "/v1/completions", "/v1/chat/completions", "/v1/responses"
    prompt, short = '{"max_tokens":1,"prompt":', '{"max_tokens":1,"prompt":"a",'
    for name, item in {
        "texts": '"a",', "numbers": "1,", "arrays": "[],", "ids in arrays": "[1],", "objects": "{},",
        "large numbers": "9" * 300 + ",", "floats": "1e99,", "nulls": "null,",
    }.items():  # fmt: skip
        yield Attack(f"prompt of {name}", completions, filled(prompt + "[", item, "]}"))
    yield Attack("a million texts", completions, filled(prompt + "[", '"a",', "]}", 4_000_000))
    yield Attack("1,024 long texts", completions, filled(prompt + "[", f'"{PROSE * 190}",', "]}"))
    for name, item in {"prose": PROSE, "blanks": " ", "escapes": "\\u00e9", "quotes": '\\"', "no ASCII": "é"}.items():
        yield Attack(f"prompt: {name}", completions, filled(prompt + '"', item, '"}'))
    yield Attack("4 MB of prose", completions, filled(prompt + '"', PROSE, '"}', 4 * MB))
    yield Attack("stop", completions, filled(short + '"stop":[', '"ab",', "]}"))
    yield Attack("stop_token_ids", completions, filled(short + '"stop_token_ids":[', "5,", "]}"))
    yield Attack("allowed_token_ids, n 16", completions,
                 filled(short + '"n":16,"allowed_token_ids":[', "5,", "]}", 500_000))  # fmt: skip
    keys = ",".join(f'"{token}":1' for token in range(1_000_000))
    yield Attack("logit_bias", completions, f'{short}"logit_bias":{{{keys}}}}}'.encode())
    yield Attack("a key again and again", completions, filled(short + '"logit_bias":{', '"1":1,', "}}"))
    yield Attack("bad_words", completions, filled(short + '"bad_words":[', f'"{PROSE * 200}",', "]}"))
    yield Attack("adapters", completions, filled(short + '"adapters":[', '{"name":"a"},', "]}"))
    yield Attack("metadata", completions, filled(short + '"metadata":{', '"a":[[]],', "}}"))
    yield Attack("model", completions, filled(short + '"model":"', "x", '"}'))
    yield Attack("a number of 16 MB", completions, filled(short + '"seed":', "7", "}"))
    yield Attack("blanks behind", completions, short[:-1].encode() + b"}" + b" " * (MOST - 64))
    yield Attack("nested arrays", completions, b"[" * MOST)
    yield Attack("no JSON", completions, b"\0" * MOST)
    yield Attack("no UTF-8", completions, b'"' + b"a" * (MOST - 2) + b"\xff")
    yield Attack("gzip of 2 GB", completions, gzip.compress(b" " * (64 * MB)) * 32, {"content-encoding": "gzip"})
    said = '{"role":"user","content":"a"},'
    begun = '{"max_tokens":1,"messages":['
    yield Attack("messages", chat, filled(begun, said, "]}"))
    yield Attack("4,096 messages", chat, filled(begun, said, "]}", 4090 * len(said)))
    yield Attack("a long message", chat, filled(begun + '{"role":"user","content":"', PROSE, '"}]}'))
    yield Attack("4 MB in a message", chat, filled(begun + '{"role":"user","content":"', PROSE, '"}]}', 4 * MB))
    yield Attack("special tokens", chat, filled(begun + '{"role":"user","content":"', "<|im_end|><", '"}]}', 4 * MB))
    yield Attack("parts", chat, filled(begun + '{"role":"user","content":[', '{"type":"text","text":"a"},', "]}]}"))
    yield Attack("a role", chat, filled(begun + '{"content":"a","role":"', "x", '"}]}'))
    tool = '{"type":"function","function":{"name":"a","parameters":{"properties":{"a":{"type":"string"}}}}},'
    yield Attack("tools", chat, filled(begun + said[:-1] + '],"tools":[', tool, "]}"))
    variables = begun + said[:-1] + '],"chat_template_kwargs":{"a":['
    yield Attack("variables of the template", chat, filled(variables, "1,", "]}}"))
    yield Attack("schema", chat, filled(begun + said[:-1] + '],"guided_json":{"enum":[', '"a",', "]}}"))
    yield Attack("schema as text", chat, filled(begun + said[:-1] + '],"guided_json":"[', "1,", ']"}'))
    item = '{"role":"user","content":"a"},'
    yield Attack("64,000 items", responses, filled('{"input":[', item, "]}", 64_000 * len(item)))
    called = '{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},'
    yield Attack("calls of functions", responses, filled('{"input":[', called, "]}"))
    thought = '{"type":"reasoning","content":[{"type":"reasoning_text","text":"aaaaaaaa"}]},'
    yield Attack("reasoning", responses, filled('{"input":[', thought, "]}"))
    yield Attack("texts to embed", "/v1/embeddings", filled('{"input":[', '"a",', "]}", 4_000_000))
    yield Attack("long texts to embed", "/v1/embeddings", filled('{"input":[', f'"{PROSE * 90}",', "]}"))
    yield Attack("4 MB to tokenize", "/tokenize", filled('{"prompt":"', PROSE, '"}', 4 * MB))
    yield Attack("texts of tokens", "/tokenize",
                 filled('{"return_token_strs":true,"prompt":"', "a b ", '"}', 2 * MB))  # fmt: skip
    yield Attack("a message to tokenize", "/tokenize",
                 filled('{"messages":[{"role":"user","content":"', PROSE, '"}]}', 4 * MB))  # fmt: skip
    yield Attack("ids to detokenize", "/detokenize", filled('{"tokens":[', "300,", "]}"))
    yield Attack("an adapter's name", "/v1/load_lora_adapter", filled('{"lora_path":"a","lora_name":"', "x", '"}'))
    yield from grammars()
    yield Attack("weights of adapters", "/lora-adapters", filled("[", '{"id":0,"scale":1},', "]"))
    yield from of_dialects()


def of_dialects() -> Iterator[Attack]:
    """Yield attacks on the routes of the wheel infeng-dialects."""
    said = '{"role":"user","content":"a"},'
    asked = '{"model":"base","max_tokens":1,"messages":['
    yield Attack("turns", "/v1/messages", filled(asked, said, "]}"))
    yield Attack("blocks", "/v1/messages",
                 filled(asked + '{"role":"user","content":[', '{"type":"text","text":"a"},', "]}]}"))  # fmt: skip
    result = '{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"a"}]},'
    yield Attack("results of tools", "/v1/messages", filled(asked + '{"role":"user","content":[', result, "]}]}"))
    yield Attack("texts of a system", "/v1/messages",
                 filled(asked + said[:-1] + '],"system":[', '{"type":"text","text":"a"},', "]}"))  # fmt: skip
    tool = '{"name":"a","input_schema":{"properties":{"a":{"type":"string"}}}},'
    yield Attack("tools with schemas", "/v1/messages", filled(asked + said[:-1] + '],"tools":[', tool, "]}"))
    yield Attack("4 MB to count", "/v1/messages/count_tokens",
                 filled('{"model":"base","messages":[{"role":"user","content":"', PROSE, '"}]}', 4 * MB))  # fmt: skip
    begun = '{"model":"base","options":{"num_predict":1},"stream":false,'
    yield Attack("a prompt to generate", "/api/generate", filled(begun + '"prompt":"', PROSE, '"}', 4 * MB))
    yield Attack("a raw prompt", "/api/generate", filled(begun + '"raw":true,"prompt":"', "a b ", '"}', 4 * MB))
    yield Attack("turns of a chat", "/api/chat", filled(begun + '"messages":[', said, "]}"))
    call = '{"function":{"name":"a","arguments":{}}},'
    results = '{"role":"tool","tool_name":"b","content":"1"},' * 4000
    calls = filled(begun + '"messages":[{"role":"assistant","tool_calls":[', call, "]}," + results[:-1] + "]}", MB)
    yield Attack("calls without results", "/api/chat", calls)
    yield Attack("texts to embed at once", "/api/embed", filled('{"model":"base","input":[', '"a",', "]}", 4_000_000))
    yield Attack("texts and ids", "/completion", filled('{"n_predict":1,"prompt":[', '"a b c",7,', "]}"))
    yield Attack("biased texts", "/completion",
                 filled('{"n_predict":1,"prompt":"a","logit_bias":[', f'["{PROSE[:60]}",1],', "]}", MB))  # fmt: skip
    files = '{"filename":"a","text":"a b c"},'
    yield Attack(
        "files to fill in", "/infill", filled('{"input_prefix":"","input_suffix":"","input_extra":[', files, "]}")
    )
    yield Attack("turns for a template", "/apply-template", filled('{"messages":[', said, "]}"))
    yield Attack("documents", "/v1/rerank", filled('{"query":"a","documents":[', '"a",', "]}"))
    yield Attack("long documents", "/v1/rerank", filled('{"query":"a","documents":[', f'"{PROSE * 30}",', "]}", 2 * MB))
    yield Attack("pairs", "/v1/score", filled('{"text_1":"a","text_2":[', '"a",', "]}"))


def grammars() -> Iterator[Attack]:
    """Yield small grammars and schemas that need much work for each token."""
    branches = [{"type": "string", "pattern": f"^(a|b|ab|ba){{{n},200}}$"} for n in range(60)]
    wide: object = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}}
    deep: object = {"type": "string"}
    for _ in range(60):
        deep = {"anyOf": [{"type": "array", "items": deep}, {"type": "string", "maxLength": 50}]}
    structures: dict[str, dict[str, object]] = {
        "ambiguous": {"grammar": "start: e\ne: e e | /./"},
        "ambiguous in three": {"grammar": "start: e\ne: e e e | e e | /[a-z ]/"},
        "optional rules": {"grammar": "start: " + "a? " * 200 + "\na: b b | b\nb: /./"},
        "long choices": {"choice": [f"{n} {PROSE * 10}" for n in range(1000)]},
        "regex": {"regex": "((a|b|c|ab|bc|ca|abc)*(.|..|...)){1,200}"},
        "schema of patterns": {"json": {"anyOf": branches}},
        "schema of properties": {"json": {"allOf": [wide, {**dict(wide), "required": ["p7"]}]}},  # type: ignore[call-overload]
        "schema in depth": {"json": deep},
    }
    for name, structure in structures.items():
        body = {"prompt": "Once", "max_tokens": 300, "structured_outputs": structure}
        yield Attack(f"grammar: {name}", "/v1/completions", json.dumps(body).encode())


# --------------------------------------------------------------------------------------------------- the measuring ---


def post(address: tuple[str, int], path: str, body: bytes, key: str, **headers: str) -> int:
    """Make one call; return its status, or 0 if the connection broke."""
    connection = http.client.HTTPConnection(*address, timeout=300)
    try:
        given = {"content-type": "application/json", "authorization": f"Bearer {key}", **headers}
        connection.request("POST", path, body, given)
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def attacked(address: tuple[str, int], attack: Attack, key: str, together: int) -> Counter[int]:
    """Send an attack ``together`` times at once; return the statuses."""
    found: list[int] = []

    def send() -> None:
        found.append(post(address, attack.path, attack.body, key, **attack.headers))

    threads = [threading.Thread(target=send) for _ in range(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(found)


class Victim:
    """A client that requests two tokens repeatedly."""

    def __init__(self, address: tuple[str, int], key: str) -> None:
        """Ask a server."""
        self._address, self._key = address, key
        self._thread = threading.Thread(target=self._ask)
        self._is_over = False
        self.seconds: list[float] = []
        self.statuses: Counter[int] = Counter()

    def __enter__(self) -> Victim:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._is_over = True
        self._thread.join()

    def _ask(self) -> None:
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 2}).encode()
        while not self._is_over:
            begin = time.perf_counter()
            self.statuses[post(self._address, "/v1/completions", body, self._key)] += 1
            self.seconds.append(time.perf_counter() - begin)
            time.sleep(0.01)


def processor(pid: int) -> float:
    """Return the processor time of a process and its children in seconds."""
    seconds = 0.0
    for one in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def settled(pid: int) -> float:
    """Return the same once the server is idle."""
    last = processor(pid)
    while True:
        time.sleep(0.5)
        now = processor(pid)
        if now - last < 0.05:
            return now
        last = now


def main() -> None:
    """Print the table; a separate process sends each attack, so that it does not slow down the victim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("victim")
    parser.add_argument("attacker")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--only", action="append")
    parser.add_argument("--together", type=int, default=TOGETHER)
    parser.add_argument("--send", help=argparse.SUPPRESS)
    given = parser.parse_args()
    parts = urlsplit(given.url)
    address = (str(parts.hostname), int(parts.port or 80))
    chosen = [attack for attack in attacks() if attack.name in (given.only or [attack.name])]
    if given.send:
        [attack] = [attack for attack in chosen if attack.name == given.send]
        print(json.dumps(attacked(address, attack, given.attacker, given.together)))
        return
    print("| attack | bytes | answers | the victim's worst, s | processor of the server, s |\n|---|---|---|---|---|")
    for attack in chosen:
        before = settled(given.pid) if given.pid else 0.0
        command = [sys.executable, __file__, given.url, given.victim, given.attacker, "--send", attack.name]
        command += ["--together", str(given.together)]
        with Victim(address, given.victim) as victim:
            sent = subprocess.run(command, capture_output=True, text=True, check=True)
        took = f"{settled(given.pid) - before:.2f}" if given.pid else ""
        statuses = ", ".join(f"{count} x {status}" for status, count in json.loads(sent.stdout).items())
        lost = "" if set(victim.statuses) == {200} else f" {dict(victim.statuses)}"
        worst = f"{max(victim.seconds):.2f}{lost}"
        row = (f"{attack.path} {attack.name}", f"{len(attack.body):,}", statuses, worst, took)
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
