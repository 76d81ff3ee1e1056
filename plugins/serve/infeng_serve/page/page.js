// A chat with one or several models of this server, side by side. Text from the server is never inserted as HTML.
import { Models } from "./adapters.js";
import { Column } from "./column.js";
import { asMarkdown, begun, Conversations, newId, titleOf } from "./conversations.js";
import { button, made, saved, tell } from "./dom.js";
import { Files } from "./files.js";
import { useKey } from "./server.js";
import { Settings } from "./settings.js";

const KEY = "infeng-api-key";
const OPENED = "infeng-conversation"; // the one that this tab shows
const RETRY_MS = 1000;

const one = (id) => document.getElementById(id);
const form = one("form");
const fields = form.elements;
const options = one("options");
const narrow = matchMedia("(max-width: 48rem)"); // the same width as in page.css
const touch = matchMedia("(pointer: coarse)"); // there Enter is a line break, as it has no Shift+Enter
const columns = new Map(); // by the model's name, of those that were chosen

const conversations = new Conversations(changedElsewhere, tell);
const settings = new Settings(fields);
const models = new Models(fields, chosenChanged);
const files = new Files(one("files"), fields.file, document.body);

/** What the columns need of the page. */
const page = {
  conversation: begun("chat"),
  settings,
  isRunning: () => [...columns.values()].some((column) => column.running),
  changed,
  save(conversation) {
    if (conversation !== page.conversation && !conversations.all.has(conversation.id)) return; // deleted meanwhile
    conversations.save(conversation);
    showList();
  },
  sendEdited(round, text) {
    const { rounds } = page.conversation;
    if (page.isRunning() || !(text.trim() || round.files.length)) return;
    const place = rounds.indexOf(round);
    const asked = chosen();
    rounds.length = place;
    for (const column of asked) column.show();
    ask(text, round.files);
  },
};

// ------------------------------------------------------------------------------------------------ what is shown ---

function chosen() {
  return [...models.cards.keys()].filter((name) => models.chosen.has(name)).map((name) => columns.get(name));
}

/** Show the columns of the chosen models. */
function chosenChanged() {
  for (const [name, column] of columns) {
    if (models.chosen.has(name)) continue;
    column.stop();
    column.element.remove();
    columns.delete(name);
  }
  for (const [name, card] of models.cards) {
    if (!models.chosen.has(name)) continue;
    const column = columns.get(name) ?? new Column(card, page);
    if (!columns.has(name)) column.show();
    columns.set(name, column);
    if (column.element !== one("columns").lastElementChild) one("columns").append(column.element);
  }
  changed();
}

/** Show what can be done now. */
function changed() {
  const isRunning = page.isRunning();
  const isChat = page.conversation.mode === "chat";
  form.classList.toggle("running", isRunning);
  one("system-label").hidden = one("chat-only").hidden = !isChat;
  one("prompt-label").textContent = isChat ? "Message to all chosen models" : "Text that all chosen models go on with";
  if (!isRunning && document.activeElement === one("stop")) fields.prompt.focus(); // a disabled button loses the focus
  one("stop").disabled = !isRunning;
  one("send").disabled = isRunning || !columns.size;
}

/** Show the conversation: its columns, its title, its mode. */
function showConversation() {
  fields.mode.value = page.conversation.mode;
  for (const column of columns.values()) column.show();
  if (conversations.isKept) sessionStorage.setItem(OPENED, page.conversation.id);
  showList();
  changed();
}

function showList() {
  const found = conversations.list();
  const items = found.map((conversation) => {
    const item = made("li");
    const opener = button(titleOf(conversation), () => open(conversation));
    if (conversation.id === page.conversation.id) opener.setAttribute("aria-current", "true");
    item.append(opener);
    return item;
  });
  const focused = [...one("conversations").querySelectorAll("button")].indexOf(document.activeElement);
  one("conversations").replaceChildren(...items);
  if (focused >= 0) one("conversations").querySelectorAll("button")[focused]?.focus();
  const isEmpty = !page.conversation.rounds.length;
  one("conversation-tools").hidden = isEmpty;
  if (document.activeElement !== fields.title) fields.title.value = isEmpty ? "" : titleOf(page.conversation);
  fields.keep.checked = conversations.isKept;
  fields.keep.disabled = !conversations.owner;
}

/** Open a conversation, with the models that answered in it. */
async function open(conversation) {
  stop();
  page.conversation = conversation;
  const names = new Set(conversation.rounds.flatMap((round) => round.answers.map((answer) => answer.model)));
  showConversation();
  if (names.size) await models.chooseAll(names);
  fields.prompt.focus();
}

function changedElsewhere(id) {
  if (id === page.conversation.id) {
    if (page.isRunning()) page.conversation.id = newId(); // both go on, as two
    else if (conversations.all.has(id)) page.conversation = conversations.all.get(id);
    for (const column of page.isRunning() ? [] : columns.values()) column.show();
  }
  showList();
}

// ----------------------------------------------------------------------------------------------------- the key ---

/** Focus the field of the key and show a reason; "" hides it. */
function askForKey(reason) {
  const wanted = one("key-wanted");
  wanted.textContent = reason;
  wanted.hidden = !reason;
  fields.key.setAttribute("aria-invalid", String(Boolean(reason)));
  if (!reason) return;
  options.open = true;
  fields.key.focus();
}

/** List the models, with retries while the server loads. */
async function listModels() {
  const asking = (listModels.last = {});
  const key = fields.key.value.trim();
  try {
    await models.refresh();
    if (asking !== listModels.last) return;
    askForKey("");
    settings.showDefaults([...models.cards.values()].find((card) => !card.parent)?.defaults);
  } catch (error) {
    if (asking !== listModels.last) return;
    models.say(error.message, true);
    const reason = key ? "The server does not know this key." : "The server asks for a key: enter it here.";
    askForKey(error.status === 401 ? reason : "");
    if (error.status === 503) setTimeout(() => asking === listModels.last && listModels(), RETRY_MS);
  }
  changed();
}

/** Use the key that is entered: its models, its conversations, its settings. */
async function keyChanged() {
  const key = fields.key.value.trim();
  if (key === keyChanged.last && models.cards.size) return; // Enter, and then the field lost the focus
  keyChanged.last = key;
  stop();
  sessionStorage.setItem(KEY, key);
  useKey(key);
  models.clear();
  page.conversation = begun(fields.mode.value);
  await conversations.use(key);
  settings.fill(conversations.note("settings"));
  const last = conversations.all.get(sessionStorage.getItem(OPENED));
  if (last) {
    page.conversation = last;
    models.chosen = new Set(last.rounds.at(-1).answers.map((answer) => answer.model));
  }
  chosenChanged();
  showConversation();
  await listModels();
}

// ----------------------------------------------------------------------------------------------------- actions ---

/** Send the message that is written, with its files. */
function send() {
  const prompt = fields.prompt.value;
  const isOn = page.conversation.mode === "completion" && page.conversation.rounds.length; // the texts go on
  if (one("send").disabled || !(prompt.trim() || files.files.length || isOn)) return;
  fields.prompt.value = "";
  fields.prompt.focus();
  if (narrow.matches) options.open = false; // gives its room to the answers
  ask(prompt.trim() || page.conversation.mode === "completion" ? prompt : "", files.taken());
}

/** Ask the chosen models. */
function ask(text, attached) {
  const round = { text, files: attached, answers: [] };
  page.conversation.rounds.push(round);
  page.conversation.changed = Date.now();
  for (const column of chosen()) column.ask(round);
  page.save(page.conversation);
}

function stop() {
  for (const column of columns.values()) column.stop();
}

function begin(mode = page.conversation.mode) {
  stop();
  page.conversation = begun(mode);
  showConversation();
  fields.prompt.focus();
}

function exported(kind) {
  const { conversation } = page;
  const name = titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation";
  if (kind === "json") saved(`${name}.json`, JSON.stringify(conversation, null, 2), "application/json");
  else saved(`${name}.md`, asMarkdown(conversation), "text/markdown");
}

function keepChanged() {
  const count = conversations.list().length;
  const isSure = fields.keep.checked || !count || confirm(`Stop keeping, and remove the ${count} kept conversations of this browser?`);
  if (isSure) conversations.keep(fields.keep.checked);
  if (isSure && !fields.keep.checked) sessionStorage.removeItem(OPENED);
  conversations.note("settings", settings.asText());
  showList();
}

const CLICKS = {
  stop,
  clear: () => begin(),
  new: () => begin(),
  attach: () => fields.file.click(),
  "export-json": () => exported("json"),
  "export-markdown": () => exported("markdown"),
  delete: () => {
    if (!confirm(`Delete “${titleOf(page.conversation)}”?`)) return;
    stop();
    conversations.remove(page.conversation.id);
    begin();
  },
  reset: () => {
    settings.fill(null);
    conversations.note("settings", settings.asText());
  },
};
for (const [id, act] of Object.entries(CLICKS)) one(id).addEventListener("click", act);

form.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.key !== "Enter" || event.isComposing) return;
  const isSending = event.target === fields.prompt && !event.shiftKey && !touch.matches;
  if (event.ctrlKey || event.metaKey || isSending) send();
  else if (event.target.tagName !== "INPUT") return;
  else if ([fields.key, fields.title].includes(event.target)) event.target.dispatchEvent(new Event("change", { bubbles: true }));
  event.preventDefault(); // Enter in a field does not send by accident
});
form.addEventListener("change", ({ target }) => {
  if (target === fields.key) keyChanged();
  else if (target === fields.keep) keepChanged();
  else if (target === fields.title) {
    page.conversation.title = target.value.trim().slice(0, 200);
    page.save(page.conversation);
  } else if (target.name === "mode") {
    if (page.conversation.rounds.length) begin(fields.mode.value); // each has one mode
    else page.conversation.mode = fields.mode.value;
    changed();
  } else if (settings.names().includes(target.name)) conversations.note("settings", settings.asText());
});
addEventListener("pagehide", () => page.isRunning() && page.save(page.conversation));

fields.key.value = sessionStorage.getItem(KEY) ?? "";
options.open = !narrow.matches;
narrow.addEventListener("change", () => (options.open = !narrow.matches || !one("key-wanted").hidden));
keyChanged();
