"""Adapters that are loaded, unloaded and mixed while the server runs, and whose they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from infeng_demo import adapter_dir
from infeng_serve.adapters import inner_name
from infeng_serve.auth import Keys
from serve_parts import Reply, Running, running

KEYS = "acme-key acme\nbeta-key beta\nspy-key spy *\nroot-key ops * admin\n"


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which may be loaded, with one adapter and one that is broken, and another folder beside it."""
    path = tmp_path_factory.mktemp("adapters")
    shutil.copytree(adapter_dir("python"), path / "allowed" / "mine")
    shutil.copytree(adapter_dir("python"), path / "allowed" / "broken")
    (path / "allowed" / "broken" / "adapter_model.safetensors").write_bytes(b"none")
    shutil.copytree(adapter_dir("shakespeare"), path / "secret" / "theirs")
    (path / "allowed" / "way-out").symlink_to(path / "secret" / "theirs")
    return path


@pytest.fixture(scope="module")
def lending(roots: Path) -> Iterator[Running]:
    """A server of several tenants that may load from a folder."""
    (roots / "keys").write_text(KEYS)
    with running(keys=Keys(file=roots / "keys"), lora_roots=(str(roots / "allowed"),)) as found:
        yield found


def call(served: Running, key: str, path: str, body: Any = None) -> Reply:
    return served.ask(path, body, authorization=f"Bearer {key}")


def load(served: Running, key: str, name: str, path: str) -> Reply:
    return call(served, key, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})


def unload(served: Running, key: str, name: str) -> Reply:
    return call(served, key, "/v1/unload_lora_adapter", {"lora_name": name})


def models(served: Running, key: str) -> set[str]:
    return {card["id"] for card in call(served, key, "/v1/models").json["data"] if card["parent"]}


def text(served: Running, key: str, model: str) -> str:
    reply = call(served, key, "/tiny", {"prompt": "# Add", "max_tokens": 16, "model": model})
    return str(reply.json["texts"][0]) if reply.status == 200 else str(reply.status)


def test_an_adapter_that_a_tenant_loads_is_visible_to_it_alone(lending: Running):
    assert load(lending, "acme-key", "fresh", "mine").data == b"Success: LoRA adapter 'fresh' added successfully."
    assert "fresh" in models(lending, "acme-key")
    assert "fresh" not in models(lending, "beta-key")
    assert text(lending, "acme-key", "fresh") == text(lending, "acme-key", "coder")
    assert text(lending, "beta-key", "fresh") == "404"
    again = load(lending, "acme-key", "fresh", "mine")
    assert (again.status, again.json["error"]["message"]) == (
        400,
        "The lora adapter 'fresh' has already been loaded.",
    )
    assert load(lending, "beta-key", "fresh", "mine").status == 200, "the name is taken by nobody that it sees"
    assert unload(lending, "beta-key", "fresh").status == 200
    assert "fresh" in models(lending, "acme-key"), "it was another one"
    assert unload(lending, "acme-key", "fresh").data == b"Success: LoRA adapter 'fresh' removed successfully."
    assert text(lending, "acme-key", "fresh") == "404"
    assert unload(lending, "acme-key", "fresh").status == 404


def test_the_engines_name_of_an_adapter_is_not_accepted(lending: Running):
    assert load(lending, "acme-key", "inner", "mine").status == 200
    names = [name for name in lending.engine.adapters if name.startswith("inner")]
    assert names != ["inner"]
    assert text(lending, "beta-key", names[0]) == text(lending, "acme-key", names[0]) == "404"
    assert "inner" in models(lending, "spy-key"), "a key with * sees everybody's"
    assert unload(lending, "spy-key", "inner").status == 403, "but takes nothing away"
    assert unload(lending, "root-key", "inner").status == 200
    assert "inner" not in models(lending, "acme-key")


@pytest.mark.parametrize(
    "way", ["../secret/theirs", "{root}/secret/theirs", "way-out", "mine/../../secret/theirs", "~", "a\0b"]
)
def test_no_adapter_is_loaded_from_outside_of_the_folders(lending: Running, roots: Path, way: str):
    reply = load(lending, "acme-key", "stolen", way.format(root=roots))
    assert reply.status == 403
    assert reply.json["error"]["param"] == "lora_path"
    assert "stolen" not in models(lending, "acme-key")


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("target", ["../../secret/theirs", "{root}/secret/theirs"])
def test_links_within_an_adapter_cannot_lead_out_of_the_folders(lending: Running, roots: Path, file: str, target: str):
    """Else a tenant that may put files there uses what others have trained."""
    folder = roots / "allowed" / "linked"
    shutil.copytree(roots / "secret" / "theirs", folder)
    try:
        assert load(lending, "acme-key", "linked", "linked").status == 200
        assert unload(lending, "acme-key", "linked").status == 200
        (folder / file).unlink()
        (folder / file).symlink_to(target.format(root=roots) + f"/{file}")
        reply = load(lending, "acme-key", "linked", "linked")
        assert (reply.status, reply.json["error"]["param"]) == (400, "lora_path")
        assert "leads out" in reply.json["error"]["message"] and str(roots) not in reply.json["error"]["message"]
        assert "linked" not in models(lending, "acme-key")
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("x", "", 400),
        ("x", " ", 400),
        ("x", ".", 400),
        ("x", "a" * 5000, 403),
        ("x", "a/" * 3000, 403),
        ("x", "broken", 400),
        ("no/name", "mine", 400),
        ("n" * 118, "mine", 400),
        ("n" * 5000, "mine", 400),
    ],
)
def test_a_failed_load_is_reported_in_the_callers_terms(
    lending: Running, roots: Path, name: str, path: str, status: int
):
    reply = load(lending, "acme-key", name, path)
    message = reply.json["error"]["message"]
    assert reply.status == status
    assert str(roots) not in message and inner_name("", "acme") not in message


def test_an_adapter_with_the_longest_name_can_be_requested(lending: Running):
    name = "n" * 117
    assert load(lending, "acme-key", name, "mine").status == 200
    assert text(lending, "acme-key", name) == text(lending, "acme-key", "coder")
    assert unload(lending, "acme-key", name).status == 200


def test_an_admin_loads_from_any_path_and_for_all_tenants(lending: Running, roots: Path):
    assert load(lending, "root-key", "common", str(roots / "secret" / "theirs")).status == 200
    assert "common" in models(lending, "acme-key") & models(lending, "beta-key")
    assert load(lending, "acme-key", "common", "mine").status == 400
    assert unload(lending, "acme-key", "common").status == 403
    roots_of = {key: call(lending, key, "/v1/models/common").json["root"] for key in ("root-key", "acme-key")}
    assert roots_of == {"root-key": str(roots / "secret" / "theirs"), "acme-key": "theirs"}
    assert unload(lending, "root-key", "common").status == 200


def test_an_unusable_adapter_is_an_error_when_it_is_loaded(lending: Running):
    reply = load(lending, "acme-key", "wrong", "broken")
    assert (reply.status, reply.json["error"]["param"]) == (400, "lora_path")
    assert "wrong" not in models(lending, "acme-key")
    assert load(lending, "acme-key", "no/name", "mine").status == 400
    assert load(lending, "acme-key", "base", "mine").status == 400


def test_an_adapter_that_fails_to_reload_stays_as_it_was(lending: Running, roots: Path):
    folder = roots / "allowed" / "changing"
    shutil.copytree(roots / "allowed" / "mine", folder)
    assert load(lending, "acme-key", "changing", "changing").status == 200
    before = text(lending, "acme-key", "changing")
    (folder / "adapter_model.safetensors").write_bytes(b"none")
    body = {"lora_name": "changing", "lora_path": "changing", "load_inplace": True}
    reply = call(lending, "acme-key", "/v1/load_lora_adapter", body)
    assert (reply.status, reply.json["error"]["param"]) == (400, "lora_path")
    message = reply.json["error"]["message"]
    assert "changing" in message and str(roots) not in message and inner_name("", "acme") not in message
    assert text(lending, "acme-key", "changing") == before
    assert unload(lending, "acme-key", "changing").status == 200
    shutil.rmtree(folder)


def test_a_reload_reads_the_files_that_it_names_in_place_of_the_old_ones(lending: Running, roots: Path):
    def reload(key: str, name: str, path: str) -> int:
        body = {"lora_name": name, "lora_path": path, "load_inplace": True}
        return call(lending, key, "/v1/load_lora_adapter", body).status

    shutil.copytree(roots / "secret" / "theirs", roots / "allowed" / "newer" / "mine")
    theirs = text(lending, "acme-key", "bard")
    assert load(lending, "acme-key", "swapped", "mine").status == 200
    assert text(lending, "acme-key", "swapped") == text(lending, "acme-key", "coder") != theirs
    assert reload("acme-key", "swapped", "newer/mine") == 200
    assert text(lending, "acme-key", "swapped") == theirs
    assert reload("acme-key", "swapped", "") == 200, "its own files again, whose folder is not told"
    assert text(lending, "acme-key", "swapped") == theirs
    assert [reload("acme-key", "swapped", path) for path in ("nowhere", "broken", "way-out")] == [403, 400, 403]
    assert text(lending, "acme-key", "swapped") == theirs
    shutil.rmtree(roots / "allowed" / "newer" / "mine")
    (roots / "allowed" / "newer" / "mine").symlink_to(roots / "secret" / "theirs")
    assert reload("acme-key", "swapped", "") == 403, "a link that leads out now"
    assert unload(lending, "acme-key", "swapped").status == 200
    assert load(lending, "acme-key", "", "mine").json["error"]["param"] == "lora_name"


def test_no_adapter_is_loaded_without_a_folder(served: Running):
    reply = served.ask("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": str(adapter_dir("python"))})
    assert (reply.status, reply.json["error"]["type"]) == (403, "permission_error")


def test_weights_on_the_base_apply_to_the_tenant_that_set_them(lending: Running):
    listed = call(lending, "acme-key", "/lora-adapters").json
    assert [(entry["id"], entry["path"], entry["scale"]) for entry in listed] == [(0, "bard", 0.0), (1, "coder", 0.0)]
    base = text(lending, "acme-key", "base")
    assert call(lending, "acme-key", "/lora-adapters", [{"id": 1, "scale": 1.0}]).status == 200
    assert call(lending, "acme-key", "/lora-adapters").json[1]["scale"] == 1.0
    assert text(lending, "acme-key", "base") == text(lending, "acme-key", "coder") != base
    assert text(lending, "beta-key", "base") == base
    assert call(lending, "acme-key", "/lora-adapters", [{"id": 7, "scale": 1.0}]).status == 400
    assert call(lending, "acme-key", "/lora-adapters", []).status == 200
    assert text(lending, "acme-key", "base") == base


@pytest.mark.parametrize("scale", [1e30, -1e30, 3e38, 1e300])
def test_an_impossible_weight_is_refused_when_it_is_set(lending: Running, scale: float):
    base = text(lending, "acme-key", "base")
    reply = call(lending, "acme-key", "/lora-adapters", [{"id": 1, "scale": scale}])
    assert (reply.status, reply.json["error"]["param"]) == (400, "[0].scale")
    assert call(lending, "acme-key", "/lora-adapters").json[1]["scale"] == 0.0
    assert text(lending, "acme-key", "base") == base
