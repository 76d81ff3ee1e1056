"""Draw headline.svg from the first table of docs/performance.md: python docs/pictures/headline.py."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "performance.md"
PICTURE = HERE / "headline.svg"

WIDTH, LEFT, RIGHT = 800, 345, 60  # pixels: the picture, the column of names, the room for a bar's figure
TOP, ROW, BAR = 68, 46, 15  # pixels: above the first row, of a row, of a bar
MOST = 6.0  # the ratio at which a bar would reach the right edge
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 16px; font-weight: 600 }
.small { font-size: 12px; fill: #59636e } .llama { fill: #0f766e } .openvino { fill: #b45309 } .one { stroke: #59636e }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9aa4af } .llama { fill: #2dd4bf } .openvino { fill: #fbbf24 }
  .one { stroke: #9aa4af }
}
"""


def rows(page: str) -> list[tuple[str, float, float | None]]:
    """Return work, ratio over llama.cpp and over OpenVINO of each line of the first table whose ratio is bold."""
    table = page.split("## Two cores with AMX")[1].split("\n| run |")[0]
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and (bold := re.match(r"\*\*([\d.]+) x\*\*", cells[2])):
            other = re.match(r"([\d.]+) x", cells[3])
            found.append((cells[0], float(bold[1]), float(other[1]) if other else None))
    return found


def bar(ratio: float, y: int, kind: str) -> list[str]:
    """Return a bar that begins at zero, and its figure."""
    width = round(ratio / MOST * (WIDTH - LEFT - RIGHT), 1)
    return [
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width}" height="{BAR}" rx="2"/>',
        f'<text x="{LEFT + width + 6:.1f}" y="{y + 12}">{ratio:.2f} x</text>',
    ]


def picture(page: str) -> str:
    """Return the chart of a page as SVG, which follows the reader's light or dark colours."""
    works = rows(page)
    height = TOP + ROW * len(works) + 26
    one = round(LEFT + (WIDTH - LEFT - RIGHT) / MOST, 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="Speed of INF-ENG over llama.cpp and OpenVINO GenAI">',
        f"<style>{STYLE}</style>",
        '<text class="title" x="12" y="26">Tokens per second, two cores with AMX, 1.1B Llama</text>',
        f'<rect class="llama" x="12" y="40" width="{BAR}" height="{BAR}" rx="2"/>'
        '<text x="34" y="52">over llama.cpp</text>',
        f'<rect class="openvino" x="150" y="40" width="{BAR}" height="{BAR}" rx="2"/>'
        '<text x="172" y="52">over OpenVINO GenAI</text>',
    ]
    for place, (work, llama, openvino) in enumerate(works):
        y = TOP + ROW * place
        lines.append(f'<text x="12" y="{y + 23}">{escape(work)}</text>')
        lines += bar(llama, y + 4, "llama")
        if openvino is not None:
            lines += bar(openvino, y + 4 + BAR + 2, "openvino")
    end = TOP + ROW * len(works)
    lines += [
        f'<line class="one" x1="{one}" y1="{TOP}" x2="{one}" y2="{end}" stroke-dasharray="3 3"/>',
        f'<text class="small" x="{one}" y="{end + 16}" text-anchor="middle">as fast</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
