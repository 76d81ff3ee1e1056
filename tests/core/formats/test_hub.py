"""Hub names resolve through huggingface_hub's own cache; without a network the error says what to do."""

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from infeng_core.formats.hub import is_name

Maker = Callable[..., Path]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = """
import sys
from infeng_core.errors import InfengError
from infeng_core.formats import load
from infeng_core.plug.assembly import load_config
try:
    print(load(sys.argv[1], load_config(), progress=False).formats_used["embed"])
except InfengError as error:
    print(f"error: {error}")
"""


def run(reference: str, home: Path, *, offline: bool = True, **environment: str) -> str:
    """Load ``reference`` in a process whose hub cache is under ``home``; return what it says."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1" if offline else "0"} | environment
    command = [sys.executable, "-P", "-c", CODE, reference]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def home(make_model: Maker, tmp_path: Path) -> Path:
    """A hub cache, laid out as huggingface_hub does, that holds acme/tiny at main and at v2."""
    repo = tmp_path / "home" / "hub" / "models--acme--tiny"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for number, file in enumerate(sorted(make_model().iterdir())):
        blob = repo / "blobs" / f"{number:040x}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    (repo / "refs").mkdir()
    for name in ("main", "v2"):
        (repo / "refs" / name).write_text(COMMIT)
    return tmp_path / "home"


@pytest.mark.parametrize("reference", ["acme/tiny", "acme/tiny@v2", f"acme/tiny@{COMMIT}"])
def test_a_cached_model_loads_offline_by_name_and_revision(home: Path, reference: str) -> None:
    assert run(reference, home) == "int8-row"


@pytest.mark.parametrize("reference", ["acme/other", "acme/tiny@v3"])
def test_offline_a_model_that_is_not_cached_says_what_to_do(home: Path, reference: str) -> None:
    said = run(reference, home)
    expected = "is not in the local hub cache and HF_HUB_OFFLINE is set: unset HF_HUB_OFFLINE to download it"
    assert said.startswith(f"error: {reference}: {expected}")


def test_an_unreachable_hub_says_what_to_do(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = run("acme/other", home, offline=False, HF_ENDPOINT=endpoint, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert said.startswith("error: acme/other: cannot be downloaded (")
    assert said.endswith("or download it elsewhere (hf download acme/other) and give the directory")


def test_a_local_directory_wins_over_a_hub_name(home: Path, make_model: Maker, tmp_path: Path) -> None:
    make_model(name="acme/tiny")
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    code = CODE.replace('["embed"]', "").replace(".formats_used", ".source")
    command = [sys.executable, "-P", "-c", code, "acme/tiny"]
    for number in range(2):
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=True, timeout=60)
        assert "error" not in done.stdout
        if number == 0:
            shutil.rmtree(tmp_path / "home")  # the second time only the local directory is left


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
    """A hub that serves the folder ``root`` as the repository acme/model and notes what is asked for."""

    root: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/acme/model/tree/"):
            sizes = {file.name: file.stat().st_size for file in self.root.iterdir()}
            oids = {name: name.encode().hex() for name in sizes}
            tree = [{"type": "file", "path": n, "size": sizes[n], "oid": oids[n]} for n in sorted(sizes)]
            self.answer(json.dumps(tree).encode())
        elif path.startswith("/api/models/acme/model"):
            files = [{"rfilename": file.name} for file in sorted(self.root.iterdir())]
            self.answer(json.dumps({"id": "acme/model", "sha": COMMIT, "siblings": files}).encode())
        elif path.startswith("/acme/model/resolve/") and (self.root / Path(path).name).exists():
            if self.command == "GET":
                self.asked.append(Path(path).name)
            self.answer((self.root / Path(path).name).read_bytes(), ETag=f'"{Path(path).name.encode().hex()}"')
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


@pytest.fixture
def hub(make_model: Maker, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """A hub with a model in two shards beside files that nobody needs; call it to load the model from there."""
    directory = make_model()
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    where = {name: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    for name in ("pytorch_model.bin", "model-q4_0.gguf", "consolidated.safetensors", "README.md", "model.onnx"):
        (directory / name).write_bytes(b"x" * 100)
    Hub.root, Hub.asked = directory, []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    yield lambda: run("acme/model", tmp_path / "home", offline=False, HF_ENDPOINT=endpoint, HF_HUB_DISABLE_XET="1")
    server.shutdown()
    server.server_close()


def test_only_what_a_run_needs_is_downloaded_and_the_config_first(hub: Callable[[], str]) -> None:
    assert hub() == "int8-row"
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
def test_a_model_that_is_not_run_is_refused_before_its_weights_come(
    hub: Callable[[], str], change: dict[str, object], said: str
) -> None:
    path = Hub.root / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    answer = hub()
    assert answer.startswith("error: ") and said in answer
    assert not [name for name in Hub.asked if name.endswith((".safetensors", ".bin", ".gguf"))]


def test_an_index_that_names_files_elsewhere_fetches_nothing_more(hub: Callable[[], str]) -> None:
    (Hub.root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "*.safetensors"}}))
    assert "which is not a safetensors file" in hub()
    assert not [name for name in Hub.asked if name.endswith(".safetensors")]
