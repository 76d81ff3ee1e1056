// Sends one prompt to several models of this server and shows their answers side by side. Text from the server is
// inserted with textContent, never as HTML.
"use strict";

const form = document.getElementById("form");
const fields = form.elements;
const models = document.getElementById("models");
const note = document.getElementById("models-note");
const options = document.getElementById("options");
const keyWanted = document.getElementById("key-wanted");
const narrow = matchMedia("(max-width: 48rem)"); // the same width as in page.css
const stopButton = document.getElementById("stop");
const sendButton = document.getElementById("send");
const columns = new Map(); // by the model's name

const KEY = "infeng-api-key";
const RETRY_MS = 1000;

function made(tag, className, text = "") {
  const found = document.createElement(tag);
  found.className = className;
  found.textContent = text;
  return found;
}

// ------------------------------------------------------------------------------------------------- the server ---

function headers() {
  const key = fields.key.value.trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

/** An error response of the server, with its message. */
class ServerError extends Error {
  constructor(error, status) {
    const kind = [status && `HTTP ${status}`, error.code ?? error.type].filter(Boolean).join(", ");
    super(kind ? `${error.message} (${kind})` : error.message);
    this.status = status;
  }
}

async function asked(path, options) {
  const response = await fetch(path, { ...options, headers: headers(), credentials: "omit" });
  if (response.ok) return response;
  const text = await response.text();
  let error = { message: text || response.statusText };
  try {
    error = JSON.parse(text).error ?? error;
  } catch {
    // not JSON: shown unchanged
  }
  throw new ServerError(error, response.status);
}

/** Yield the data of server-sent events, parsed, up to [DONE]. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ServerError({ message: "The stream broke off." });
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

// ---------------------------------------------------------------------------------------------------- requests ---

function mode() {
  return fields.mode.value;
}

/** Return a number, or text that is not one unchanged, so that the server reports the error. */
function parameters() {
  const found = {};
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    const text = fields[name].value.trim();
    if (text) found[name] = Number.isNaN(Number(text)) ? text : Number(text);
  }
  return found;
}

function bodyOf(model, turns) {
  const options = { include_usage: true, continuous_usage_stats: true };
  const body = { model, stream: true, stream_options: options, ...parameters() };
  if (mode() === "completion") return { ...body, prompt: turns.map((turn) => turn.content).join("") };
  const system = fields.system.value.trim();
  return { ...body, messages: [...(system ? [{ role: "system", content: system }] : []), ...turns] };
}

// ------------------------------------------------------------------------------------------------ the columns ---

/** One model's conversations, one for each mode, and their elements. */
class Column {
  constructor(card) {
    this.model = card.id;
    this.running = null; // AbortController of the current answer
    this.turns = { chat: [], completion: [] };
    this.element = made("section", "column");
    this.element.setAttribute("aria-label", card.id);
    const header = made("header", "");
    header.append(made("h2", "", card.id), made("span", "", card.parent ? `adapter on ${card.parent}` : "base model"));
    this.logs = { chat: this.logOf("chat"), completion: this.logOf("completion") };
    this.figures = made("div", "figures");
    this.element.append(header, this.logs.chat, this.logs.completion, this.figures);
  }

  logOf(name) {
    const log = made("div", `log ${name}`);
    log.tabIndex = 0;
    log.setAttribute("role", "log");
    log.setAttribute("aria-live", "polite");
    log.setAttribute("aria-label", `Answers of ${this.model}`);
    return log;
  }

  /** Show a piece of conversation and return its text node, which grows. */
  show(log, role, text) {
    const turn = made("div", `turn ${role}`);
    const node = document.createTextNode(text);
    turn.append(node);
    log.append(turn);
    log.scrollTop = log.scrollHeight;
    return node;
  }

  async send(prompt) {
    const name = mode();
    const log = this.logs[name];
    const asking = prompt ? [{ role: "user", content: prompt }] : [];
    const turns = [...this.turns[name], ...asking];
    if (prompt) this.show(log, "user", prompt);
    const control = (this.running = new AbortController());
    const answer = { text: "", tokens: 0, first: 0, firstTokens: 0, last: 0, finish: "", begin: performance.now() };
    log.setAttribute("aria-busy", "true");
    this.figures.textContent = "waiting…";
    changed();
    try {
      await this.read(log, bodyOf(this.model, turns), name, answer, control.signal);
    } catch (error) {
      if (control.signal.aborted) answer.finish = "stopped";
      else this.show(log, "error", error.message);
    }
    log.removeAttribute("aria-busy");
    if (this.running !== control) return; // cleared meanwhile
    this.running = null;
    if (answer.text) this.turns[name] = [...turns, { role: "assistant", content: answer.text }];
    this.tell(answer);
    changed();
  }

  async read(log, body, name, answer, signal) {
    const path = name === "chat" ? "v1/chat/completions" : "v1/completions";
    const response = await asked(path, { method: "POST", body: JSON.stringify(body), signal });
    const nodes = {};
    const grow = (role, text) => {
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      nodes[role] ??= this.show(log, role, "");
      nodes[role].appendData(text);
      if (atEnd) log.scrollTop = log.scrollHeight;
    };
    for await (const event of eventsOf(response)) {
      signal.throwIfAborted(); // data read before the stop may hold further events
      if (event.error) throw new ServerError(event.error);
      const choice = event.choices?.[0];
      const text = (name === "chat" ? choice?.delta?.content : choice?.text) ?? "";
      const thought = choice?.delta?.reasoning_content ?? "";
      if (thought) grow("thought", thought);
      if (text) grow("assistant", text);
      answer.text += text;
      answer.finish = choice?.finish_reason ?? answer.finish;
      this.count(answer, event.usage, text || thought);
    }
  }

  /** Record the times of tokens; tokens of the first event count for the TTFT, not for the speed. */
  count(answer, usage, hasText) {
    const tokens = usage?.completion_tokens ?? answer.tokens;
    if (tokens <= answer.tokens && !hasText) return;
    answer.last = performance.now();
    answer.tokens = tokens;
    if (!answer.first) [answer.first, answer.firstTokens] = [answer.last, tokens];
    this.tell(answer);
  }

  tell(answer) {
    const parts = [];
    if (answer.first) {
      const seconds = (answer.last - answer.first) / 1000;
      const later = answer.tokens - answer.firstTokens;
      parts.push(`first token ${Math.round(answer.first - answer.begin)} ms`);
      if (later > 0 && seconds > 0) parts.push(`${Number((later / seconds).toPrecision(3))} tokens/s`);
      parts.push(`${answer.tokens} tokens`);
    }
    if (answer.finish) parts.push(answer.finish);
    this.figures.textContent = parts.map((part) => part.replaceAll(" ", "\u00a0")).join(" · ");
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.running = null;
    this.turns = { chat: [], completion: [] };
    this.logs.chat.replaceChildren();
    this.logs.completion.replaceChildren();
    this.figures.textContent = "";
  }
}

function chosen() {
  return [...models.querySelectorAll("input:checked")].map((box) => columns.get(box.value));
}

/** Show the selected columns, the conversations of the mode, and the available buttons. */
function changed() {
  const shown = new Set(chosen());
  for (const column of columns.values()) {
    column.element.hidden = !shown.has(column);
    for (const [name, log] of Object.entries(column.logs)) log.hidden = name !== mode();
  }
  const isChat = mode() === "chat";
  document.getElementById("system-label").hidden = !isChat;
  document.getElementById("prompt-label").textContent = isChat
    ? "Message to all chosen models"
    : "Text that all chosen models go on with";
  const isRunning = [...columns.values()].some((column) => column.running);
  if (!isRunning && document.activeElement === stopButton) fields.prompt.focus(); // a disabled button loses the focus
  stopButton.disabled = !isRunning;
  sendButton.disabled = isRunning || !shown.size;
}

// ----------------------------------------------------------------------------------------------------- actions ---

function addModel(card, isChosen) {
  const label = made("label", "choice");
  const box = made("input", "");
  box.type = "checkbox";
  box.value = card.id;
  box.checked = isChosen;
  const text = made("span", "", card.id);
  if (!card.parent) text.append(" ", made("small", "", "base"));
  label.append(box, text);
  models.insertBefore(label, note);
  const column = columns.get(card.id) ?? new Column(card);
  columns.set(card.id, column);
  document.getElementById("columns").append(column.element);
}

/** List the models, with retries while the server loads. Selected models stay selected; at first, two are. */
async function listModels() {
  const asking = (listModels.last = {});
  const before = new Set(chosen().map((column) => column.model));
  try {
    const { data } = await (await asked("v1/models")).json();
    if (asking !== listModels.last) return; // the key was changed meanwhile
    for (const label of models.querySelectorAll(".choice")) label.remove();
    for (const [name, column] of columns) if (!data.some((card) => card.id === name)) remove(name, column);
    data.forEach((card, index) => addModel(card, before.size ? before.has(card.id) : index < 2));
    tellModels("");
    askForKey("");
  } catch (error) {
    if (asking !== listModels.last) return;
    tellModels(error.message, true);
    const isGiven = Boolean(fields.key.value.trim());
    const reason = isGiven ? "The server does not know this key." : "The server asks for a key: enter it here.";
    askForKey(error.status === 401 ? reason : "");
    if (error.status === 503) setTimeout(() => asking === listModels.last && listModels(), RETRY_MS);
  }
  changed();
}

function remove(name, column) {
  column.clear();
  column.element.remove();
  columns.delete(name);
}

function tellModels(text, isBad = false) {
  note.textContent = text;
  note.classList.toggle("bad", isBad);
}

/** Focus the field of the key and show a reason; "" hides it. */
function askForKey(reason) {
  keyWanted.textContent = reason;
  keyWanted.hidden = !reason;
  fields.key.setAttribute("aria-invalid", String(Boolean(reason)));
  if (!reason) return;
  options.open = true;
  fields.key.focus();
}

function send() {
  const prompt = fields.prompt.value;
  const isOn = mode() === "completion"; // without a prompt the models continue their texts
  const asked = chosen().filter((column) => prompt.trim() || (isOn && column.turns.completion.length));
  if (sendButton.disabled || !asked.length) return;
  fields.prompt.value = "";
  fields.prompt.focus();
  if (narrow.matches) options.open = false; // gives its room to the answers
  for (const column of asked) column.send(prompt.trim() || isOn ? prompt : "");
}

function stop() {
  for (const column of columns.values()) column.stop();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.key !== "Enter" || event.isComposing) return;
  if (event.ctrlKey || event.metaKey) send();
  else if (event.target.tagName !== "INPUT") return;
  event.preventDefault(); // Enter in a field does not send by accident
});
form.addEventListener("change", (event) => {
  if (event.target === fields.key) {
    sessionStorage.setItem(KEY, fields.key.value.trim());
    listModels();
  }
  if (event.target.type === "checkbox" && !event.target.checked) columns.get(event.target.value).stop();
  changed();
});
stopButton.addEventListener("click", stop);
document.getElementById("clear").addEventListener("click", () => {
  for (const column of columns.values()) column.clear();
  changed();
  fields.prompt.focus();
});

fields.key.value = sessionStorage.getItem(KEY) ?? "";
options.open = !narrow.matches;
narrow.addEventListener("change", () => (options.open = !narrow.matches || !keyWanted.hidden));
listModels();
