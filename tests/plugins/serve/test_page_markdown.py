"""Answers in Markdown, as the page's own module makes elements of them in Chromium."""

from __future__ import annotations

from typing import Any

import pytest
from page_parts import Page, saying
from serve_parts import Running, running

pytestmark = pytest.mark.slow

DRAWN = """
const [text, size, done] = arguments;
import("/markdown.js").then(({Markdown}) => {
  const root = document.createElement("div");
  const markdown = new Markdown(root);
  for (let i = 0; i < text.length; i += size) {
    markdown.write(text.slice(i, i + size));
    if (text.length < 5000 || i % (50 * size) === 0) markdown.draw();
  }
  markdown.end();
  for (const one of root.querySelectorAll(".code-head")) one.remove();
  for (const one of root.querySelectorAll("*")) {
    for (const name of ["target", "rel", "tabindex", "role", "aria-label", "title"]) one.removeAttribute(name);
  }
  done([root.innerHTML, root.textContent.length]);
}, (error) => done(String(error)));
"""

CODE = '<div class="code"><pre><code>{}</code></pre></div>'

CASES = {
    "# One\n## Two ##\ntext": "<h3>One</h3><h4>Two</h4><p>text</p>",
    "a *b* **c** ***d*** ~~e~~ `f*g*`": "<p>a <em>b</em> <strong>c</strong> <strong><em>d</em></strong> <del>e</del> "
    "<code>f*g*</code></p>",
    "**bold *both***": "<p><strong>bold <em>both</em></strong></p>",
    "2 * 3 * 4, snake_case_name, **open": "<p>2 * 3 * 4, snake_case_name, **open</p>",
    r"\*no\* ``a`b``": "<p>*no* <code>a`b</code></p>",
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "- a\n- b\n  - c\n\n    more\n- d": "<ul><li>a</li><li>b<ul><li>c<p>more</p></li></ul></li><li>d</li></ul>",
    "3. a\n4. b\n\n* c": '<ol start="3"><li>a</li><li>b</li></ol><ul><li>c</li></ul>',
    "- [x] done\n- [ ] open": "<ul><li>☑ done</li><li>☐ open</li></ul>",
    "1986. A year\nIn\n1986. it was": '<ol start="1986"><li>A year\nIn</li><li>it was</li></ol>',
    "> a\n> - b\n\nc": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>",
    "text\n| a | b |\n|---|--:|\n| `x\\|y` | 2 |\n| 3 |\nend": '<p>text</p><div class="table"><table><thead><tr>'
    '<th>a</th><th class="right">b</th></tr></thead><tbody><tr><td><code>x|y</code></td><td class="right">2</td></tr>'
    "<tr><td>3</td></tr></tbody></table></div><p>end</p>",
    "---\n***": "<hr><hr>",
    "```\n# no *mark*\n\n```\nend": CODE.format("# no *mark*\n\n") + "<p>end</p>",
    "~~~py\nx = 1 # one\n~~~": CODE.format(
        'x = <span class="code-number">1</span> <span class="code-comment"># one</span>\n'
    ),
    "````\n```\n````": CODE.format("```\n"),
    "```js\nif (a) return 'b'": CODE.format(
        '<span class="code-word">if</span> (a) <span class="code-word">return</span> '
        "<span class=\"code-text\">'b'</span>"
    ),
    "1. do\n   ```sh\n   ls\n   ```\n2. done": '<ol start="1"><li>do' + CODE.format("ls\n") + "</li><li>done</li></ol>",
    "[a](https://b.c/d_(e)) <mailto:x@y.z> see http://q.r/s.": '<p><a href="https://b.c/d_(e)">a</a> '
    '<a href="mailto:x@y.z">mailto:x@y.z</a> see <a href="http://q.r/s">http://q.r/s</a>.</p>',
    "![alt](https://b.c/i.png)": '<p><a href="https://b.c/i.png">alt</a></p>',
    "a<br>b <b>c</b> &amp;": "<p>a<br>b &lt;b&gt;c&lt;/b&gt; &amp;amp;</p>",
}


@pytest.fixture(scope="module")
def drawn(chromium: Any, served: Running) -> Any:
    """Return a function from Markdown, and the size of the pieces in which it comes, to the HTML of its elements."""
    chromium.get(f"{served.url}/")
    chromium.set_script_timeout(60)
    return lambda text, size=1_000_000: chromium.execute_async_script(DRAWN, text, size)


@pytest.mark.parametrize("text", CASES)
def test_markdown_becomes_elements_however_it_arrives(drawn: Any, text: str):
    for size in (1_000, 1, 5):
        found = drawn(text, size)[0].replace(' class=""', "")
        assert found.replace("\n</code>", "</code>") == CASES[text].replace("\n</code>", "</code>"), size


HOSTILE = [
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>",
    "[a](javascript:document.title='owned')",
    "[a](JaVaScRiPt:alert(1)) [b](data:text/html,x) [c](//evil.example) [d](vbscript:x) [e](<javascript:alert(1)>)",
    "<javascript:alert(1)> <data:text/html,x>",
    '[a](https://b.c" onclick="document.title=1)',
    "`<img src=x>`\n\n```<script>\n<img src=x onerror=alert(1)>\n```",
    "| <img src=x> | b |\n|---|---|\n| <svg onload=alert(1)> | [x](javascript:1) |",
    "![x](data:image/svg+xml,x) ![y](https://b.c/pixel.png)",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_and_links_of_other_kinds_stay_text(page: Page, text: str):
    with running(routes=saying(lambda given: [text[:7], text[7:]])) as served:
        page.open(served)
        page.say("Go")
        assert page.all(".log :is(img, script, svg, iframe, style, form, object, embed)") == []
        script = "return [...document.querySelectorAll('.log a')].map(a => [a.protocol, a.rel])"
        assert all(found == ["https:", "noopener noreferrer nofollow"] for found in page.driver.execute_script(script))
        assert page.driver.execute_script(
            "return [...document.querySelectorAll('.log *')].flatMap(e => e.getAttributeNames())"
            ".filter(name => name.startsWith('on') || name == 'style' || name == 'src')"
        ) == []  # fmt: skip
        assert page.driver.title == "INF-ENG: chat with models"
        assert page.complaints() == []


LONG = {
    "emphasis": "*a " * 100_000,
    "marks": "_a*b~~" * 50_000,
    "brackets": "[" * 1_000_000,
    "links": "[a](" * 250_000,
    "backticks": "`a``b```c" * 110_000,
    "fence": "```py\n" + "x = 1\n" * 160_000,
    "line of code": "```\n" + "x" * 1_000_000,
    "table": "|a|b\n|-|-\n" + "|\n" * 500_000,
    "quotes": ">" * 1_000_000,
    "list": "- a\n" * 250_000,
    "levels": "".join("  " * depth + "- a\n" for depth in range(1000)),
    "paragraphs": "a\n\n" * 330_000,
    "quote marks": "```js\n" + '"' * 60_000,
    "spaces": " " * 1_000_000,
    "rule": "- " * 500_000 + "x",
}


@pytest.mark.parametrize("kind", LONG)
def test_a_megabyte_of_any_mark_is_drawn_and_loses_no_text(drawn: Any, kind: str):
    text = LONG[kind]
    for size in (1_000_000, 4_000):
        html, length = drawn(text, size)
        assert isinstance(html, str)
        if kind in ("emphasis", "marks", "brackets", "links", "fence", "line of code"):
            assert length >= 0.95 * len(text.strip())


def test_a_long_answer_is_drawn_while_it_comes(page: Page):
    answer = [f"## Part {number}\n\nSome *words*.\n\n" for number in range(2_000)]
    with running(routes=saying(lambda given: answer)) as served:
        page.open(served)
        page.all("#model-list input")[1].click()  # one model
        page.say("Go")
        assert len(page.all(".log h4")) == 2_000
        assert page.complaints() == []


def test_code_is_copied_as_it_came(page: Page):
    code = 'def f(x):\n    return "<b>"\n'
    with running(routes=saying(lambda given: [f"Here:\n```python\n{code}```\n"])) as served:
        page.open(served)
        page.driver.execute_cdp_cmd(
            "Browser.grantPermissions",
            {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": served.url},
        )
        page.say("Go")
        page.click("Copy code")
        assert page.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])") == code
        assert "Copied" in page.texts(".code-head button")
