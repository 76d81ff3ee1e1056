// Markdown as elements: the part of CommonMark and GitHub's tables that models write. Elements are made one by one and
// text is set as text, so nothing in an answer is HTML; links go to http, https and mailto only, and nothing is loaded.
import { button, copy, made } from "./dom.js";

const DEEPEST = 8; // levels of lists, quotes and links
const MOST_OPEN = 6; // emphases that are open at once; further marks are text
const MOST_BLOCK = 32_768; // characters of a block that is still being read; a longer one is divided
const MOST_COLOURED = 65_536; // characters of code
const MOST_COLUMNS = 64;
const DRAWN_MS = 40; // at most so often is the block drawn again that is being read

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?! )| +(?=\S)|$)/;
const INTERRUPTS = /^ {0,3}(?:[-*+]|1[.)]) +\S/; // items that end a paragraph; "1986. A year" does not
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

// ----------------------------------------------------------------------------------------------------- in a line ---

const SPECIAL = /[\\`*_~[<!]|https?:\/\//g;
const LINK = /!?\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,1000})\]\([ \t]*(?:<([^<>\n]{0,2000})>|((?:[^\s()<]|\([^\s()]{0,500}\)){0,2000}))(?:[ \t]+"[^"\n]{0,500}")?[ \t]*\)/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BARE = /https?:\/\/[^\s<>"'`\\]{1,2000}/y;
const BREAK = /<br[ \t]*\/?>/iy;
const SAFE = /^(?:https?:\/\/|mailto:)/i;

const isWord = (c) => /[\p{L}\p{N}]/u.test(c);
const isSpace = (c) => c === "" || /\s/.test(c);

function at(pattern, text, index) {
  pattern.lastIndex = index;
  return pattern.exec(text);
}

function linkTo(address) {
  return made("a", "", "", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" });
}

/** Append a text with emphasis, code and links to an element. */
function inline(root, text, depth = 0) {
  const open = []; // {mark, element}: emphases that have begun
  const noEnd = new Set(); // lengths of runs of backticks that have no end
  let place = root;
  let index = 0;
  const put = (...nodes) => place.append(...nodes);
  const undo = () => {
    const { mark, element } = open.pop();
    element.before(mark);
    while (element.firstChild) element.before(element.firstChild);
    element.remove();
  };
  const current = () => open.at(-1)?.element ?? root;
  for (;;) {
    const found = at(SPECIAL, text, index);
    if (!found) break;
    const from = found.index;
    put(text.slice(index, from));
    const c = text[from];
    index = from + 1;
    if (c === "\\" && /[!-/:-@[-`{-~]/.test(text[index] ?? "")) {
      put(text[index++]);
    } else if (c === "`") {
      const run = at(/`+/y, text, from)[0];
      index = from + run.length;
      const end = noEnd.has(run.length) ? null : at(new RegExp(`(?<!\`)${run}(?!\`)`, "g"), text, index);
      if (end) {
        const code = text.slice(index, end.index).replaceAll("\n", " ");
        const isPadded = code.startsWith(" ") && code.endsWith(" ") && code.trim();
        put(made("code", "", isPadded ? code.slice(1, -1) : code));
        index = end.index + run.length;
      } else {
        noEnd.add(run.length);
        put(run);
      }
    } else if (c === "[" || c === "!") {
      const link = depth < DEEPEST ? at(LINK, text, from) : null;
      const address = link?.[2] ?? link?.[3];
      if (link && SAFE.test(address)) {
        const made = linkTo(address);
        inline(made, link[1] || address, DEEPEST); // no link within a link
        put(made);
      } else put(link?.[0] ?? c);
      index = from + (link?.[0].length ?? 1);
    } else if (c === "<" || c === "h") {
      const auto = depth < DEEPEST ? at(c === "<" ? AUTOLINK : BARE, text, from) : null;
      const address = c === "<" ? auto?.[1] : auto?.[0].replace(/[.,:;!?)*_~\]]{1,9}$/, "");
      const broken = c === "<" && at(BREAK, text, from);
      if (auto) {
        const made = linkTo(address);
        made.textContent = address;
        put(made);
        index = from + (c === "<" ? auto[0].length : address.length);
      } else if (broken) {
        put(document.createElement("br"));
        index = from + broken[0].length;
      } else put(c);
    } else if ("*_~".includes(c)) {
      const run = at(/\*+|_+|~+/y, text, from)[0];
      index = from + run.length;
      const [before, after] = [text[from - 1] ?? "", text[index] ?? ""];
      const opens = !isSpace(after) && (c !== "_" || !isWord(before));
      const closes = !isSpace(before) && (c !== "_" || !isWord(after));
      let left = run.length;
      while (closes && left) {
        const last = open.findLastIndex(({ mark }) => mark[0] === c && mark.length <= left);
        if (last < 0) break;
        while (open.length > last + 1) undo();
        left -= open.pop().mark.length;
        place = current();
      }
      const sizes = left > 3 || !opens ? [] : c === "~" ? (left === 2 ? [2] : []) : left === 3 ? [2, 1] : left ? [left] : [];
      if (!sizes.length || open.length + sizes.length > MOST_OPEN) {
        if (left) put(c.repeat(left));
        continue;
      }
      for (const size of sizes) {
        const element = made(c === "~" ? "del" : size === 2 ? "strong" : "em");
        put(element);
        open.push({ mark: c.repeat(size), element });
        place = element;
      }
    } else put(c);
  }
  put(text.slice(index));
  while (open.length) undo();
  return root;
}

// --------------------------------------------------------------------------------------------------------- code ---

const WORDS = new Set(
  ("abstract and as assert async await bool break case catch char class const continue def default del delete do done double " +
    "elif else end enum esac except export extends false False fi final finally float fn for from func function global if impl " +
    "implements import in int interface is lambda let local long match mod module mut namespace new nil None nonlocal not null " +
    "or package pass private protected pub public raise return select self static string struct super switch then this " +
    "throw trait true True try type typeof undefined union unsafe use using var void where while with yield " +
    "SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE JOIN LEFT ON GROUP ORDER BY LIMIT AND OR NOT NULL").split(" "),
);
const HASHES = /^(?:py|python|sh|bash|shell|zsh|console|yaml|yml|toml|rb|ruby|r|perl|make|makefile|dockerfile|ini|conf)$/i;
const TEXTS = String.raw`"(?:[^"\\\n]|\\.){0,5000}"|'(?:[^'\\\n]|\\.){0,5000}'|` + "`(?:[^`\\\\]|\\\\.){0,5000}`";
const NUMBERS = String.raw`|\b\d[\w.]{0,60}|[A-Za-z_]\w{0,60}`;

/** Return a text of code with comments, texts, numbers and keywords coloured. */
function coloured(text, language) {
  if (text.length > MOST_COLOURED || !language || /^(?:text|txt|plain|md|markdown)$/i.test(language)) return [text];
  const comments = HASHES.test(language)
    ? "#[^\\n]*|"
    : /^sql$|^lua$|^haskell$/i.test(language)
      ? "--[^\\n]*|"
      : String.raw`\/\/[^\n]*|\/\*(?:[^*]|\*(?!\/)){0,20000}\*\/|`;
  const found = [];
  let index = 0;
  for (const match of text.matchAll(new RegExp(comments + TEXTS + NUMBERS, "g"))) {
    const c = match[0][0];
    const isName = /[A-Za-z_]/.test(c);
    if (isName && !WORDS.has(match[0])) continue;
    const kind = isName ? "word" : /\d/.test(c) ? "number" : /["'`]/.test(c) ? "text" : "comment";
    found.push(text.slice(index, match.index), made("span", `code-${kind}`, match[0]));
    index = match.index + match[0].length;
  }
  return [...found, text.slice(index)];
}

/** A block of code that may still grow: its element has a line with the language and a button that copies. */
class Code {
  constructor(language) {
    this.language = language.trim().split(/\s/)[0].slice(0, 40);
    this.element = made("div", "code");
    const head = made("div", "code-head");
    head.append(made("span", "", this.language || "text"), button("Copy", (event) => copy(this.node.data, event.target), "Copy code"));
    this.body = made("pre", "", "", { tabindex: "0", "aria-label": "Code" });
    this.node = document.createTextNode("");
    const code = made("code");
    code.append(this.node);
    this.body.append(code);
    this.element.append(head, this.body);
  }

  add(text) {
    this.node.appendData(text);
  }

  end() {
    this.body.firstChild.replaceChildren(...coloured(this.node.data, this.language));
    return this.element;
  }
}

// ------------------------------------------------------------------------------------------------------- blocks ---

const isBlank = (line) => !line.trim();
const indentOf = (line) => line.search(/[^ ]|$/);
const isTable = (lines, i) => lines[i]?.includes("|") && DELIMITERS.test(lines[i + 1] ?? "") && lines[i + 1].includes("-");

function begins(lines, i) {
  const line = lines[i];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || isTable(lines, i);
}

/** Return the line after the block that begins at line i, which is not blank. */
function endOf(lines, i) {
  const fence = FENCE.exec(lines[i]);
  let end = i + 1;
  if (fence) {
    const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}[ \\t]*$`);
    while (end < lines.length && !close.test(lines[end])) end++;
    return Math.min(end + 1, lines.length);
  }
  if (HEADING.test(lines[i]) || RULE.test(lines[i])) return end;
  if (QUOTE.test(lines[i])) {
    while (end < lines.length && QUOTE.test(lines[end])) end++;
    return end;
  }
  if (isTable(lines, i)) {
    while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) end++;
    return end;
  }
  if (ITEM.test(lines[i])) return endOfList(lines, i);
  while (end < lines.length && !isBlank(lines[end]) && !begins(lines, end) && !INTERRUPTS.test(lines[end])) end++;
  return end;
}

const kindOf = (line) => ITEM.exec(line)[2].at(-1); // another mark begins another list

function endOfList(lines, i) {
  let last = i;
  const [base, kind] = [indentOf(lines[i]), kindOf(lines[i])];
  for (let end = i + 1; end < lines.length; end++) {
    const line = lines[end];
    if (isBlank(line)) continue;
    const isItem = ITEM.test(line) && !RULE.test(line);
    if (isItem && indentOf(line) < base + 2 && kindOf(line) !== kind) break;
    const isMore = isItem || indentOf(line) >= 2;
    const isLazy = last === end - 1 && !begins(lines, end);
    if (!isMore && !isLazy) break;
    last = end;
  }
  return last + 1;
}

function listOf(lines, depth) {
  const first = ITEM.exec(lines[0])[2];
  const isOrdered = /\d/.test(first);
  const list = made(isOrdered ? "ol" : "ul");
  if (isOrdered) list.start = Number.parseInt(first, 10);
  const base = indentOf(lines[0]);
  let item = [];
  const finish = () => {
    if (!item.length) return;
    const element = made("li");
    const task = /^\[([ xX])\] /.exec(item[0]);
    if (task) item[0] = item[0].slice(4);
    element.append(...blocks(item, depth + 1));
    const only = element.firstElementChild;
    if (only?.tagName === "P") only.replaceWith(...only.childNodes); // a line of a list is no paragraph
    if (task) element.prepend(task[1] === " " ? "☐ " : "☑ ");
    list.append(element);
    item = [];
  };
  let width = 0;
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && indentOf(line) < base + 2 && (!item.length || indentOf(line) < width)) {
      finish();
      width = found[0].length;
      item.push(line.slice(width));
    } else item.push(line.slice(Math.min(indentOf(line), width)));
  }
  finish();
  return list;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/, MOST_COLUMNS).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function tableOf(lines, depth) {
  const sides = cells(lines[1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const rowOf = (line, tag) => {
    const row = made("tr");
    const found = cells(line).slice(0, sides.length);
    found.forEach((cell, i) => row.append(inline(made(tag, sides[i]), cell, depth)));
    return row;
  };
  const [head, body] = [made("thead"), made("tbody")];
  head.append(rowOf(lines[0], "th"));
  for (const line of lines.slice(2)) body.append(rowOf(line, "td"));
  const table = made("table");
  table.append(head, body);
  const box = made("div", "table", "", { tabindex: "0", role: "region", "aria-label": "Table" }); // scrolls by itself
  box.append(table);
  return box;
}

function blockOf(lines, depth) {
  const fence = FENCE.exec(lines[0]);
  if (fence) {
    const code = new Code(fence[2]);
    const isClosed = lines.length > 1 && new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}[ \\t]*$`).test(lines.at(-1));
    code.add(lines.slice(1, isClosed ? -1 : undefined).map((line) => `${line}\n`).join(""));
    return code.end();
  }
  const heading = HEADING.exec(lines[0]);
  if (heading) return inline(made(`h${Math.min(6, heading[1].length + 2)}`), (heading[2] ?? "").replace(/[ \t]#+[ \t]*$/, ""));
  if (RULE.test(lines[0])) return made("hr");
  if (depth < DEEPEST && QUOTE.test(lines[0])) {
    const quote = made("blockquote");
    quote.append(...blocks(lines.map((line) => line.replace(QUOTE, "")), depth + 1));
    return quote;
  }
  if (isTable(lines, 0)) return tableOf(lines, depth);
  if (depth < DEEPEST && ITEM.test(lines[0])) return listOf(lines, depth);
  return inline(made("p"), lines.join("\n").trim());
}

function blocks(lines, depth = 0) {
  const found = [];
  for (let i = 0; i < lines.length; ) {
    if (isBlank(lines[i])) {
      i++;
      continue;
    }
    const end = endOf(lines, i);
    found.push(blockOf(lines.slice(i, end), depth));
    i = end;
  }
  return found;
}

/** Markdown that arrives in pieces: only the block that is being read is drawn again. */
export class Markdown {
  constructor(element) {
    this.element = element;
    this.waiting = ""; // has arrived, and is not looked at yet
    this.rest = ""; // of the block that is being read
    this.drawn = []; // its elements
    this.code = null; // {code, close}: a fence that is open
    this.timer = 0;
    this.after = () => {}; // called after drawing
  }

  write(text) {
    this.waiting += text;
    this.timer ||= setTimeout(() => this.draw(), this.wait ?? 0);
  }

  end() {
    this.draw(true);
    return this;
  }

  draw(isLast = false) {
    clearTimeout(this.timer);
    this.timer = 0;
    const begin = performance.now();
    for (const node of this.drawn) node.remove();
    this.drawn = [];
    for (let index = 0; index < this.waiting.length; index += MOST_BLOCK) {
      this.rest += this.waiting.slice(index, index + MOST_BLOCK);
      this.settle();
    }
    this.waiting = "";
    if (!this.code) {
      this.drawn = blocks(this.rest.split("\n"));
      this.element.append(...this.drawn);
    }
    if (isLast && this.code) {
      if (!this.code.close.test(this.rest)) this.code.code.add(this.rest);
      this.code.code.end();
    }
    this.wait = Math.max(DRAWN_MS, 4 * (performance.now() - begin)); // a fifth of the time at most
    this.after();
  }

  /** Move what is complete out of `rest`: a block is, once a line after it has come. */
  settle() {
    const lines = this.rest.split("\n");
    const tail = lines.pop();
    const last = lines.findLastIndex((line) => !isBlank(line));
    let i = 0;
    for (;;) {
      if (this.code) {
        let end = i;
        while (end < lines.length && !this.code.close.test(lines[end])) end++;
        if (end > i) this.code.code.add(lines.slice(i, end).map((line) => `${line}\n`).join(""));
        i = end;
        if (end >= lines.length) break;
        i++;
        this.code.code.end();
        this.code = null;
      }
      while (i < lines.length && isBlank(lines[i])) i++;
      if (i >= lines.length) break;
      const fence = FENCE.exec(lines[i]);
      if (fence) {
        const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}[ \\t]*$`);
        this.code = { code: new Code(fence[2]), close };
        this.element.append(this.code.code.element);
        i++;
        continue;
      }
      const end = endOf(lines, i);
      if (end > last) break; // it may go on
      this.element.append(blockOf(lines.slice(i, end), 0));
      i = end;
    }
    this.rest = [...lines.slice(i), tail].join("\n");
    if (this.rest.length <= MOST_BLOCK) return;
    if (this.code) this.code.code.add(this.rest); // a line that long is no end of a fence
    else this.element.append(...blocks(this.rest.split("\n")));
    this.rest = "";
  }
}

/** Fill an element with a whole text. */
export function show(element, text) {
  element.replaceChildren();
  const markdown = new Markdown(element);
  markdown.waiting = text;
  markdown.end();
}
