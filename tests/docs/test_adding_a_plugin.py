"""The plugin of docs/adding-a-plugin.md, as written there, from entry point to output."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_s_plugin_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adding-a-plugin.md").read_text()
    files = re.findall(r"```\w+\n# ([\w./]+)[^\n]*\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in files] == ["pyproject.toml", "infeng_shout/plugin.yaml", "infeng_shout/__init__.py"]
    content = dict(files)
    package, info = tmp_path / "infeng_shout", tmp_path / "infeng_shout-0.1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "plugin.yaml").write_text(content["infeng_shout/plugin.yaml"])
    (package / "__init__.py").write_text(content["infeng_shout/__init__.py"])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: infeng-shout\nVersion: 0.1.0\n")
    [(group, entries)] = tomllib.loads(content["pyproject.toml"])["project"]["entry-points"].items()
    [(name, place)] = entries.items()
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {place}\n")
    code = "import sys; from infeng_core.cli import main; sys.exit(main(sys.argv[1:]))"

    def infeng(*words: str) -> str:
        command = [sys.executable, "-P", "-c", f"import sys; sys.path.append({str(tmp_path)!r}); {code}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stderr == ""
        return done.stdout

    assert infeng("shout", "hello") == "HELLO!\n"
    assert re.search(
        r"^  shout +0\.1\.0 +ready +1 command +infeng-shout 0\.1\.0$", infeng("plugins", "list"), re.MULTILINE
    )
