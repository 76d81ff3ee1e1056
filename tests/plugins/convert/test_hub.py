"""Hub names resolve through huggingface_hub's own cache; without a network the error says what to do."""

import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import tiny_model
from gguf_calls import export_gguf
from infeng_convert.hub import fetch_config, is_name
from infeng_gguf import hub as hub_gguf
from safetensors.numpy import load_file, save_file

from infeng_core.errors import ModelError

Maker = Callable[..., Path]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = """
import sys
from infeng_core.errors import InfengError
from infeng_core.formats.loader import load
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins
config = load_config()
plugins = Plugins.discover(config)
for line in sys.stdin:
    try:
        print(load(line.strip(), config, plugins, progress=False).formats_used["embed"], flush=True)
    except InfengError as error:
        print(f"error: {error}", flush=True)
"""


def environment(home: Path, offline: bool, **more: str) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return env | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1" if offline else "0"} | more


def run(*references: str, home: Path, offline: bool = True, **more: str) -> str:
    """Load all ``references`` in a process whose hub cache is under ``home``; return what it says, a line for each."""
    command, lines = [sys.executable, "-P", "-c", CODE], "".join(f"{name}\n" for name in references)
    env = environment(home, offline, **more)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def cached(home: Path, directory: Path) -> Path:
    """Make a hub cache under ``home``, laid out as huggingface_hub does: acme/tiny at main and at v2; return it."""
    repo = home / "hub" / "models--acme--tiny"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for number, file in enumerate(sorted(directory.iterdir())):
        blob = repo / "blobs" / f"{number:040x}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    (repo / "refs").mkdir()
    for name in ("main", "v2"):
        (repo / "refs" / name).write_text(COMMIT)
    return home


@pytest.fixture
def home(make_model: Maker, tmp_path: Path) -> Path:
    """A hub cache with a model in safetensors."""
    return cached(tmp_path / "home", make_model())


@pytest.fixture(scope="module")
def ggufs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of GGUF files of one model, as people publish them, with what lies beside them."""
    source = tiny_model.write(tmp_path_factory.mktemp("source"), tiny_model.Shape(hidden=64, intermediate=64, layers=1))
    folder = tmp_path_factory.mktemp("ggufs")
    for format in ("f16", "q8_0", "q4_0"):
        export_gguf(source, folder / f"tiny-{format.upper()}.gguf", format, progress=False)
    for name in ("mmproj-tiny-F16.gguf", "README.md"):
        (folder / name).write_bytes(b"x" * 100)
    return folder


@pytest.mark.parametrize(
    ("reference", "is_one"),
    [
        *((f"acme/tiny@{revision}", True) for revision in ("main", "v1.0", "refs/pr/1", "feature/x-y", COMMIT)),
        *((f"acme/tiny@{path}", False) for path in ("../../x", "x/../y", "..", "x//y", "/x", "x/", "-x", ".x", "")),
    ],
)  # fmt: skip
def test_a_revision_is_a_commit_a_branch_or_a_tag_and_no_path(reference: str, is_one: bool) -> None:
    assert is_name(reference) == is_one
    if not is_one:
        with pytest.raises(ModelError, match="is not a hub name"):
            fetch_config(reference)


def test_offline_cached_models_load_by_name_and_others_get_a_remedy(home: Path) -> None:
    there, missing = ("acme/tiny", "acme/tiny@v2", f"acme/tiny@{COMMIT}"), ("acme/other", "acme/tiny@v3")
    said = run(*there, *missing, home=home).splitlines()
    assert said[:3] == ["int8-row"] * 3
    expected = "is not in the local hub cache and HF_HUB_OFFLINE is set: unset HF_HUB_OFFLINE to download it"
    for reference, line in zip(missing, said[3:], strict=True):
        assert line.startswith(f"error: {reference}: {expected}")


def test_an_unreachable_hub_says_what_to_do(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = run("acme/other", home=home, offline=False, HF_ENDPOINT=endpoint, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert said.startswith("error: acme/other: cannot be downloaded (")
    assert said.endswith("or download it elsewhere (hf download acme/other) and give the directory")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_cached_model_with_a_link_out_of_the_cache_is_refused(home: Path, make_model: Maker, file: str) -> None:
    path = home / "hub" / "models--acme--tiny" / "snapshots" / COMMIT / file
    path.unlink()
    path.symlink_to(make_model(name="elsewhere") / file)
    assert re.fullmatch(
        rf"error: .*{re.escape(file)}: is a link that leads out of the directory: .*", run("acme/tiny", home=home)
    )


@pytest.mark.parametrize("damage", [b"\xff\xfe\0", b"../../../x", b""])
def test_a_cache_whose_branch_is_no_commit_is_an_error(home: Path, damage: bytes) -> None:
    (home / "hub" / "models--acme--tiny" / "refs" / "main").write_bytes(damage)
    assert re.fullmatch("error: .*acme.*", run("acme/tiny", home=home))


def test_impossible_hub_names_are_errors(home: Path) -> None:
    names = ["a/b@", "a/..", "a/b@..", "a/b@../x", "a/b@/etc", "a/" + "b" * 5000, "a/b@" + "c" * 5000, "a/bé", "a b/c",
             "a/b:", "a/b:..", "a/b:../x.gguf", "a/b:/etc/passwd", "a--b/c", "a/b.git", "-a/b", "a/b@@c", "@", "a/b@-x",
             "a/b:" + "x" * 5000]  # fmt: skip
    said = run(*names, home=home).splitlines()
    assert len(said) == len(names) and all(line.startswith("error: ") for line in said)


def test_a_local_directory_wins_over_a_hub_name(home: Path, make_model: Maker, tmp_path: Path) -> None:
    make_model(name="acme/tiny")
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    code = CODE.replace('["embed"]', "").replace(".formats_used", ".source")
    shutil.rmtree(home / "hub" / "models--acme--tiny" / "blobs")  # what the hub's cache has cannot be loaded
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(
        command, input="acme/tiny\n", capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0 and done.stdout and "error" not in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("reference", "is_hub_name"),
    [
        ("meta-llama/Llama-3.2-1B", True),
        ("a/b@refs/pr/1", True),
        ("plain", False),
        ("a/b/c", False),
        ("../b", False),
        ("/a/b", False),
        ("a/b@", False),
        ("a b/c", False),
    ],
)
def test_hub_names_are_recognized(reference: str, is_hub_name: bool) -> None:
    assert is_name(reference) == is_hub_name


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that serves folders, ``roots`` by the names of repositories of acme, and notes what is asked for."""

    roots: ClassVar[dict[str, Path]] = {}
    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = re.fullmatch(r"(/api/models)?/acme/([^/]+)(/tree/.*|/resolve/.*|/revision/.*)?", path)
        root = self.roots.get(found[2]) if found else None
        if found is None or root is None:
            self.send_error(404)
        elif found[1] and (found[3] or "").startswith("/tree/"):
            sizes = {file.name: file.stat().st_size for file in root.iterdir()}
            oids = {name: name.encode().hex() for name in sizes}
            tree = [{"type": "file", "path": n, "size": sizes[n], "oid": oids[n]} for n in sorted(sizes)]
            self.answer(json.dumps(tree).encode())
        elif found[1]:
            files = [{"rfilename": file.name} for file in sorted(root.iterdir())]
            self.answer(json.dumps({"id": f"acme/{found[2]}", "sha": COMMIT, "siblings": files}).encode())
        elif (file := root / Path(path).name).exists():
            if self.command == "GET":
                self.asked.append(file.name)
            self.answer(file.read_bytes(), ETag=f'"{file.name.encode().hex()}"')
        else:
            self.send_error(404)

    def answer(self, data: bytes, **headers: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(data)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """A process that loads from that hub, one name after another, and says of each what ``run`` does."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    more = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_DISABLE_XET": "1"}
    env = environment(tmp_path_factory.mktemp("home"), False, **more)
    command = [sys.executable, "-P", "-c", CODE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdin and process.stdout

        def ask(reference: str) -> str:
            process.stdin.write(f"{reference}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield ask
        process.stdin.close()
    server.shutdown()
    server.server_close()


class Repository:
    """A model in two shards beside unneeded files."""

    def __init__(self, root: Path, ask: Callable[[str], str]) -> None:
        self.root = root
        self.name = f"acme/model-{len(Hub.roots)}"  # what the process has of another one is no matter
        Hub.roots[self.name.partition("/")[2]] = root
        Hub.asked.clear()
        self._ask = ask

    def load(self, end: str = "") -> str:
        """Return what loading says."""
        return self._ask(self.name + end)


@pytest.fixture
def hub(make_model: Maker, loads: Callable[[str], str]) -> Repository:
    """A repository of the hub."""
    directory = make_model()
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    where = {name: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    for name in ("pytorch_model.bin", "model-q4_0.gguf", "consolidated.safetensors", "README.md", "model.onnx"):
        (directory / name).write_bytes(b"x" * 100)
    return Repository(directory, loads)


def test_only_needed_files_are_downloaded_and_the_config_first(hub: Repository) -> None:
    assert hub.load() == "int8-row"
    assert set(Hub.asked) == {
        "config.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "tokenizer.json",
    }
    weights = [Hub.asked.index(name) for name in Hub.asked if name.startswith("model-")]
    assert Hub.asked.index("config.json") < min(weights)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": -1}, "hidden_size"),
    ],
)
def test_an_unsupported_model_is_refused_before_its_weights_are_downloaded(
    hub: Repository, change: dict[str, object], said: str
) -> None:
    path = hub.root / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    answer = hub.load()
    assert answer.startswith("error: ") and said in answer
    assert not [name for name in Hub.asked if name.endswith((".safetensors", ".bin", ".gguf"))]


def test_an_index_that_names_files_elsewhere_fetches_nothing_more(hub: Repository) -> None:
    (hub.root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "*.safetensors"}}))
    assert "which is not a safetensors file" in hub.load()
    assert not [name for name in Hub.asked if name.endswith(".safetensors")]


def test_a_gguf_of_the_cache_is_named_by_its_quantization_or_its_file(ggufs: Path, tmp_path: Path) -> None:
    wanted = {
        "acme/tiny:Q8_0": "int8-g32",
        "acme/tiny@v2:q4_0": "int8-g32",
        "acme/tiny:tiny-F16.gguf": "int8-row",
        "acme/tiny:Q6_K": "error: acme/tiny:Q6_K: has no GGUF file 'Q6_K': "
        "name one: acme/tiny:F16, acme/tiny:Q4_0, acme/tiny:Q8_0",
        "acme/tiny:tiny": "error: acme/tiny:tiny: fits several files: "
        "name one: acme/tiny:tiny-F16.gguf, acme/tiny:tiny-Q4_0.gguf, acme/tiny:tiny-Q8_0.gguf",
        "acme/tiny": "error: acme/tiny: holds GGUF files: name one: acme/tiny:F16, acme/tiny:Q4_0, acme/tiny:Q8_0",
        "acme/other:Q8_0": "error: acme/other: is not in the local hub cache and HF_HUB_OFFLINE is set: "
        "unset HF_HUB_OFFLINE to download it, or give a local directory",
    }
    assert run(*wanted, home=cached(tmp_path / "home", ggufs)).splitlines() == list(wanted.values())


def test_only_the_named_gguf_of_a_repository_is_downloaded(hub: Repository, ggufs: Path) -> None:
    for file in ggufs.glob("tiny-*.gguf"):
        shutil.copy(file, hub.root)
    assert [hub.load(":Q8_0"), hub.load(":tiny-Q8_0.gguf")] == ["int8-g32", "int8-g32"]
    assert Hub.asked == ["tiny-Q8_0.gguf"]


def test_a_repository_with_only_gguf_files_lists_them(hub: Repository) -> None:
    for file in hub.root.glob("*.safetensors*"):
        file.unlink()
    assert hub.load() == f"error: {hub.name}: holds GGUF files: name one: {hub.name}:q4_0"
    assert not [name for name in Hub.asked if name.endswith(".gguf")]


NAMES = (
    "Tiny-1B-Q4_K_M.gguf",
    "Tiny-1B-IQ4_XS.gguf",
    "tiny-1b.Q5_0.gguf",
    "tiny_1b_Q4_K.gguf",
    "BF16/Tiny-1B-BF16-00001-of-00002.gguf",
    "BF16/Tiny-1B-BF16-00002-of-00002.gguf",
    "Tiny-1B-UD-Q8_0.gguf",
    "Tiny-1B-Q8_0.gguf",
    "mmproj-F16.gguf",
    "../Tiny-1B-Q2_K.gguf",
    "/Tiny-1B-Q3_K.gguf",
    "config.json",
)


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ("Q4_K_M", ["Tiny-1B-Q4_K_M.gguf"]),
        ("q4_k", ["tiny_1b_Q4_K.gguf"]),
        ("IQ4_XS", ["Tiny-1B-IQ4_XS.gguf"]),
        ("Q5_0", ["tiny-1b.Q5_0.gguf"]),
        ("BF16", ["BF16/Tiny-1B-BF16-00001-of-00002.gguf", "BF16/Tiny-1B-BF16-00002-of-00002.gguf"]),
        (
            "BF16/Tiny-1B-BF16-00002-of-00002.gguf",
            ["BF16/Tiny-1B-BF16-00001-of-00002.gguf", "BF16/Tiny-1B-BF16-00002-of-00002.gguf"],
        ),
        ("UD-Q8_0", ["Tiny-1B-UD-Q8_0.gguf"]),
        ("Tiny-1B-Q8_0.gguf", ["Tiny-1B-Q8_0.gguf"]),
        ("Q8_0", "fits several files"),
        ("F16", "has no GGUF file"),
        ("Q2_K", "has no GGUF file"),
        ("Q3_K", "has no GGUF file"),
        ("Q4", "has no GGUF file"),
        ("*", "has no GGUF file"),
    ],
)
def test_a_quantization_is_found_in_the_names_of_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: str, files: list[str] | str
) -> None:
    """What the hub answers is replaced: the names of one repository of many kinds."""
    asked: list[str] = []
    monkeypatch.setattr(hub_gguf, "hub_listing", lambda reference: (f"{reference}@{COMMIT}", list(NAMES)))
    monkeypatch.setattr(hub_gguf, "hub_fetch", lambda reference, names: asked.extend(names) or tmp_path)
    if isinstance(files, str):
        with pytest.raises(ModelError, match=f"{files}|is not the name of a GGUF file") as caught:
            hub_gguf.fetch_gguf(f"a/b:{wanted}")
        assert "a/b:" in caught.value.remedy or "org/name:" in caught.value.remedy
    else:
        assert hub_gguf.fetch_gguf(f"a/b:{wanted}") == tmp_path / files[0] and asked == files
