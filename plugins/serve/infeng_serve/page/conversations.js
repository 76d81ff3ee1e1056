// Conversations, kept by the browser: one item of localStorage each, so that two tabs do not overwrite each other's.
// Keys of the API have lists of their own, by a hash. What is over the bounds goes, the oldest first.

export const MOST = 100; // conversations of one key
export const MOST_CHARACTERS = 4_000_000; // of all of them; browsers hold some five million for one origin

const PREFIX = "infeng";
const isKeepable = (conversation) => conversation.rounds.length > 0;

/** Return the name under which a key's items are kept, without the key; "" where nothing can be kept. */
async function ownerOf(key) {
  try {
    localStorage.length;
  } catch {
    return ""; // the user forbids it
  }
  if (!key) return "open";
  if (!crypto.subtle) return ""; // no hashes, as the page came over HTTP from another machine
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`infeng page ${key}`));
  return [...new Uint8Array(digest)].slice(0, 16).map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newId() {
  return [...crypto.getRandomValues(new Uint32Array(3))].map((word) => word.toString(36)).join("");
}

/** Return a conversation without a message. */
export function begun(mode) {
  return { id: newId(), title: "", mode, changed: Date.now(), rounds: [] };
}

/** Return what is shown as the title: the user's own, or the beginning of the first message. */
export function titleOf(conversation) {
  const first = conversation.rounds.find((round) => round.text.trim())?.text.trim().slice(0, 80).replace(/\s+/g, " ");
  return conversation.title || first || "New conversation";
}

/** Return whether something that was read is a conversation, down to what the page takes for granted. */
function isConversation(found) {
  const isText = (value) => typeof value === "string";
  const isAnswer = (answer) =>
    isText(answer?.model) && Number.isInteger(answer.at) && Array.isArray(answer.versions) &&
    answer.versions[answer.at] && answer.versions.every((version) => isText(version?.text));
  const isRound = (round) =>
    isText(round?.text) && Array.isArray(round.files) && round.files.every((file) => isText(file?.name) && isText(file.text)) &&
    Array.isArray(round.answers) && round.answers.every(isAnswer);
  return (
    isText(found?.id) && isText(found.title) && ["chat", "completion"].includes(found.mode) &&
    Number.isFinite(found.changed) && Array.isArray(found.rounds) && found.rounds.every(isRound)
  );
}

/** The conversations of the key that is used. */
export class Conversations {
  /** changed(id) is called when another tab wrote or removed one; tell(text) says what was lost. */
  constructor(changed, tell) {
    this.tell = tell;
    this.owner = "";
    this.all = new Map(); // by id
    this.sizes = new Map(); // characters that are kept, by id
    addEventListener("storage", (event) => {
      if (event.key === null) return this.read();
      if (!this.owner || !event.key.startsWith(this.place(""))) return;
      const id = event.key.slice(this.place("").length);
      this.take(id, event.newValue);
      changed(id);
    });
  }

  place(id) {
    return `${PREFIX}:${this.owner}:conversation:${id}`;
  }

  /** Use a key's list from now on. */
  async use(key) {
    const owner = await ownerOf(key);
    if (owner === this.owner && owner) return;
    this.owner = owner;
    this.read();
  }

  read() {
    this.all.clear();
    this.sizes.clear();
    if (!this.isKept) return;
    for (const place of Object.keys(localStorage)) {
      if (place.startsWith(this.place(""))) this.take(place.slice(this.place("").length), localStorage.getItem(place));
    }
  }

  take(id, text) {
    this.all.delete(id);
    this.sizes.delete(id);
    try {
      const found = JSON.parse(text);
      if (!isConversation(found) || found.id !== id) return;
      this.all.set(id, found);
      this.sizes.set(id, text.length);
    } catch {
      // not one of ours: left alone
    }
  }

  /** Whether conversations of this key are kept. */
  get isKept() {
    return Boolean(this.owner) && localStorage.getItem(`${PREFIX}:${this.owner}:keep`) !== "no";
  }

  /** Keep conversations from now on, or none: then those that are kept are removed. */
  keep(isKept) {
    if (!this.owner) return;
    if (isKept) {
      localStorage.removeItem(`${PREFIX}:${this.owner}:keep`);
      for (const one of this.all.values()) this.save(one);
      return;
    }
    for (const place of Object.keys(localStorage)) {
      if (place.startsWith(`${PREFIX}:${this.owner}:`)) localStorage.removeItem(place);
    }
    localStorage.setItem(`${PREFIX}:${this.owner}:keep`, "no");
    this.sizes.clear();
  }

  /** A small value beside the conversations, such as the settings. */
  note(name, value) {
    const place = `${PREFIX}:${this.owner}:${name}`;
    if (value === undefined) return this.owner ? localStorage.getItem(place) : null;
    try {
      if (this.isKept) localStorage.setItem(place, value);
    } catch {
      // full: what is said of conversations is enough
    }
  }

  /** Return the conversations, the newest first. */
  list() {
    return [...this.all.values()].filter(isKeepable).sort((a, b) => b.changed - a.changed);
  }

  /** Keep a conversation; the oldest others are removed where there is no room. */
  save(conversation) {
    if (!isKeepable(conversation)) return;
    this.all.set(conversation.id, conversation);
    if (!this.isKept) return;
    const text = JSON.stringify(conversation);
    const others = () => this.list().filter((one) => one.id !== conversation.id && this.sizes.has(one.id));
    const room = () => others().reduce((sum, one) => sum + this.sizes.get(one.id), text.length);
    const makeRoom = () => {
      const oldest = others().at(-1);
      if (!oldest) return false;
      this.remove(oldest.id);
      this.tell(`“${titleOf(oldest)}” was removed: there is room for ${MOST} conversations and 4 million characters.`);
      return true;
    };
    while ((others().length >= MOST || room() > MOST_CHARACTERS) && makeRoom());
    for (;;) {
      try {
        if (text.length > MOST_CHARACTERS) throw new DOMException("", "QuotaExceededError");
        localStorage.setItem(this.place(conversation.id), text);
        this.sizes.set(conversation.id, text.length);
        this.isFull = false;
        return;
      } catch (error) {
        if (error.name !== "QuotaExceededError") throw error;
        if (text.length <= MOST_CHARACTERS && makeRoom()) continue;
        if (!this.isFull) this.tell("The browser has no room for this conversation: a reload loses it. Export what you need.");
        this.isFull = true;
        return;
      }
    }
  }

  remove(id) {
    this.all.delete(id);
    this.sizes.delete(id);
    if (this.owner) localStorage.removeItem(this.place(id));
  }
}

/** Return a conversation as Markdown, with the answers that are chosen. */
export function asMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  for (const round of conversation.rounds) {
    const files = round.files.map((file) => `(file: ${file.name})`);
    if (round.text || files.length) parts.push("## User", [round.text, ...files].filter(Boolean).join("\n\n"));
    for (const { model, at, versions } of round.answers) parts.push(`## ${model}`, versions[at].text);
  }
  return `${parts.join("\n\n")}\n`;
}
