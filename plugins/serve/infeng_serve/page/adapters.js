// The models of the server, some at a time, those that are chosen, and adapters that are loaded from the page.
import { made, tell } from "./dom.js";
import { asked } from "./server.js";

const AT_FIRST = 50; // models of the first page
const AT_A_TIME = 1000; // of the next ones
const MOST_PAGES = 100; // that a search looks through
const MOST_SHOWN = 200;

export class Models {
  /** changed() is called when other models are listed or chosen. */
  constructor(fields, changed) {
    this.fields = fields;
    this.changed = changed;
    this.cards = new Map(); // by name, in the server's order
    this.chosen = new Set(); // names
    this.after = null; // the name after which there are more
    this.list = document.getElementById("model-list");
    this.note = document.getElementById("models-note");
    this.more = document.getElementById("more-models");
    this.more.addEventListener("click", () => this.guarded(() => this.next()));
    this.list.addEventListener("change", (event) => this.choose(event.target.value, event.target.checked));
    fields.filter.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.guarded(() => this.search()), 200);
    });
    for (const [id, act] of [["load", () => this.load(false)], ["reload", () => this.load(true)], ["unload", () => this.unload()]]) {
      document.getElementById(id).addEventListener("click", () => this.guarded(act));
    }
  }

  /** List the models anew. What is chosen stays so; at first, two are. Throws ServerError. */
  async refresh() {
    const asking = (this.asking = {});
    const found = await (await asked(`v1/models?limit=${AT_FIRST}`)).json();
    if (asking !== this.asking) return; // the key was changed meanwhile
    this.cards.clear();
    this.take(found);
    for (const name of this.chosen) if (!this.cards.has(name) && !(await this.find(name))) this.chosen.delete(name);
    if (!this.chosen.size) for (const name of [...this.cards.keys()].slice(0, 2)) this.chosen.add(name);
    this.show();
    this.changed();
  }

  /** Forget all models, as another key is used. */
  clear() {
    this.asking = null;
    this.cards.clear();
    this.chosen.clear();
    this.after = null;
    this.show();
  }

  take({ data, has_more: hasMore, last_id: last }) {
    for (const card of data) this.cards.set(card.id, card);
    this.after = hasMore ? (last ?? data.at(-1)?.id ?? null) : null;
  }

  async next() {
    const { asking } = this;
    const found = await (await asked(`v1/models?limit=${AT_A_TIME}&after=${encodeURIComponent(this.after)}`)).json();
    if (asking !== this.asking) return;
    this.take(found);
    this.show();
  }

  /** Look for a model by its whole name, which is perhaps on a page that was not asked for; return whether it is. */
  async find(name) {
    if (!this.cards.has(name) && this.after !== null) {
      try {
        const card = await (await asked(`v1/models/${encodeURIComponent(name)}`)).json();
        this.cards.set(card.id, card);
      } catch {
        // it is not there
      }
    }
    return this.cards.has(name);
  }

  matching() {
    const wanted = this.fields.filter.value.trim().toLowerCase();
    return [...this.cards.values()].filter((card) => card.id.toLowerCase().includes(wanted));
  }

  /** Show the models that match the filter; further pages are asked for until some do. */
  async search() {
    for (let page = 0; page < MOST_PAGES && this.after !== null && this.matching().length < AT_FIRST; page++) await this.next();
    this.show();
  }

  choose(name, isChosen) {
    if (isChosen) this.chosen.add(name);
    else this.chosen.delete(name);
    this.changed();
  }

  /** Choose those of some models that there are. */
  async chooseAll(names) {
    const there = [];
    for (const name of names) if (await this.find(name)) there.push(name);
    if (!there.length) return;
    this.chosen = new Set(there);
    this.show();
    this.changed();
  }

  show() {
    const found = this.matching();
    this.list.replaceChildren(...found.slice(0, MOST_SHOWN).map((card) => this.choiceOf(card)));
    this.more.hidden = this.after === null;
    const left = found.length > MOST_SHOWN ? `${found.length - MOST_SHOWN} more match: say more of the name.` : "";
    this.say(this.cards.size && !found.length ? "No model has this in its name." : left);
  }

  choiceOf(card) {
    const label = made("label", "choice");
    const box = made("input", "", "", { type: "checkbox", value: card.id });
    box.checked = this.chosen.has(card.id);
    const text = made("span", "", card.id);
    if (!card.parent) text.append(" ", made("small", "", "base"));
    label.append(box, text);
    return label;
  }

  say(text, isBad = false) {
    this.note.textContent = text;
    this.note.classList.toggle("bad", isBad);
  }

  // -------------------------------------------------------------------------------------------------- adapters ---

  async guarded(act) {
    try {
      await act();
    } catch (error) {
      tell(error.message);
    }
  }

  async load(again) {
    const [name, path] = [this.fields.lora_name.value.trim(), this.fields.lora_path.value.trim()];
    const answer = await asked("v1/load_lora_adapter", { lora_name: name, lora_path: path, ...(again && { load_inplace: true }) });
    tell(await answer.text());
    this.chosen.add(name);
    await this.refresh();
  }

  async unload() {
    const name = this.fields.lora_name.value.trim();
    const answer = await asked("v1/unload_lora_adapter", { lora_name: name });
    tell(await answer.text());
    this.chosen.delete(name);
    await this.refresh();
  }
}
