// One model's side of a conversation: its answers as they come, in versions, with what can be done with each.
import { button, copy, made } from "./dom.js";
import { chips, withFiles } from "./files.js";
import { Markdown, show } from "./markdown.js";
import { asked, eventsOf, ServerError } from "./server.js";

const KEPT_MS = 3000; // so often is an answer kept while it grows

/** The times and tokens of one answer, as a line. */
class Figures {
  constructor() {
    Object.assign(this, { begin: performance.now(), first: 0, firstTokens: 0, last: 0, tokens: 0, prompt: 0 });
  }

  /** Record an event; tokens of the first one count for the TTFT, not for the speed. */
  count(usage, hasText) {
    const tokens = usage?.completion_tokens ?? this.tokens;
    this.prompt = usage?.prompt_tokens ?? this.prompt;
    if (tokens <= this.tokens && !hasText) return;
    this.last = performance.now();
    this.tokens = tokens;
    if (!this.first) [this.first, this.firstTokens] = [this.last, tokens];
  }

  line(finish) {
    const parts = [];
    if (this.first) {
      const seconds = (this.last - this.first) / 1000;
      const later = this.tokens - this.firstTokens;
      parts.push(`first token ${Math.round(this.first - this.begin)} ms`);
      if (later > 0 && seconds > 0) parts.push(`${Number((later / seconds).toPrecision(3))} tokens/s`);
      if (this.tokens) parts.push(`${this.tokens} tokens`, `prompt of ${this.prompt}`);
    }
    if (finish) parts.push(finish);
    return parts.map((part) => part.replaceAll(" ", "\u00a0")).join(" · ");
  }
}

/** A model's column. `page` has the conversation and the settings: page.js. */
export class Column {
  constructor(card, page) {
    this.model = card.id;
    this.page = page;
    this.running = null; // AbortController of the answer that grows
    this.atEnd = true; // whether the log follows its end
    this.element = made("section", "column", "", { "aria-label": card.id });
    const header = made("header");
    header.append(made("h2", "", card.id), made("span", "", card.parent ? `adapter on ${card.parent}` : "base model"));
    const label = `Answers of ${card.id}`;
    this.log = made("div", "log", "", { tabindex: "0", role: "log", "aria-live": "polite", "aria-label": label });
    this.log.addEventListener("scroll", () => {
      this.atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    });
    this.element.append(header, this.log);
  }

  // ------------------------------------------------------------------------------------------------ what is seen ---

  answerOf(round) {
    return round.answers.find((answer) => answer.model === this.model);
  }

  rounds() {
    return this.page.conversation.rounds.filter((round) => this.answerOf(round));
  }

  /** Show the whole conversation. */
  show() {
    this.atEnd = true;
    this.log.classList.toggle("completion", this.page.conversation.mode === "completion");
    this.log.replaceChildren(...this.rounds().map((round) => this.roundOf(round)));
    this.follow();
  }

  follow() {
    if (this.atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  /** Return a round's element: the message, the answer, and their tools. */
  roundOf(round) {
    const element = made("div", "round");
    if (round.text || round.files.length) {
      const turn = made("div", "turn user", round.text);
      const tools = made("div", "tools mine");
      tools.append(...chips(round.files), button("Edit", () => this.edit(round, turn, tools), "Edit this message"));
      element.append(turn, tools);
    }
    element.append(this.versionOf(round));
    return element;
  }

  versionOf(round) {
    const element = made("div", "answer");
    const { at, versions } = this.answerOf(round);
    const version = versions[at];
    if (version.thought) element.append(this.thoughtOf(version.thought));
    if (version.text) {
      const turn = made("div", "turn assistant", version.text);
      if (this.page.conversation.mode === "chat") show(turn, version.text);
      element.append(turn);
    }
    if (version.error) element.append(made("div", "turn error", version.error));
    element.append(this.toolsOf(round, version));
    return element;
  }

  thoughtOf(text) {
    const details = made("details", "thinking");
    details.append(made("summary", "", "Thoughts"), made("div", "turn thought", text));
    return details;
  }

  toolsOf(round, version) {
    const tools = made("div", "tools");
    const answer = this.answerOf(round);
    const step = (by) => {
      answer.at += by;
      this.page.save(this.page.conversation);
      this.redraw(round);
    };
    if (answer.versions.length > 1) {
      const [back, on] = [button("‹", () => step(-1), "Previous version"), button("›", () => step(1), "Next version")];
      back.disabled = answer.at === 0;
      on.disabled = answer.at === answer.versions.length - 1;
      tools.append(back, made("span", "", `${answer.at + 1}/${answer.versions.length}`), on);
    }
    if (round === this.rounds().at(-1)) {
      tools.append(button("Again", () => this.again(round, false), "Answer again"));
      const isCut = version.text && ["length", "stopped", ""].includes(version.finish);
      if (isCut && this.page.conversation.mode === "chat") {
        tools.append(button("Continue", () => this.again(round, true), "Continue this answer"));
      }
    }
    if (version.text) tools.append(button("Copy", (event) => copy(version.text, event.target), "Copy this answer"));
    tools.append(made("span", "figures", version.figures));
    return tools;
  }

  redraw(round) {
    this.log.children[this.rounds().indexOf(round)]?.querySelector(".answer").replaceWith(this.versionOf(round));
  }

  /** Let the user change a message; it is sent anew then, and what followed it is gone. */
  edit(round, turn, tools) {
    if (this.page.isRunning()) return;
    const box = made("div", "edit");
    const field = made("textarea", "", "", { "aria-label": "Your message", rows: "3" });
    field.value = round.text;
    const close = () => box.replaceWith(turn, tools);
    const send = () => this.page.sendEdited(round, field.value);
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Escape", "Enter"].includes(event.key) || event.shiftKey) return;
      event.preventDefault();
      event.stopPropagation();
      event.key === "Enter" ? send() : close();
    });
    const actions = made("div", "tools mine");
    actions.append(made("span", "", "What follows is replaced."), button("Send", send), button("Cancel", close));
    box.append(field, actions);
    tools.remove();
    turn.replaceWith(box);
    field.focus();
  }

  // --------------------------------------------------------------------------------------------------- requests ---

  again(round, isContinued) {
    if (!this.page.isRunning()) this.ask(round, isContinued);
  }

  /** Return the request's body for the answer to a round. */
  bodyFor(round, isContinued) {
    const { conversation, settings } = this.page;
    const options = { include_usage: true, continuous_usage_stats: true };
    const body = { model: this.model, stream: true, stream_options: options, ...settings.parameters(conversation.mode) };
    const turns = [];
    for (const one of conversation.rounds.slice(0, conversation.rounds.indexOf(round) + 1)) {
      const answer = this.answerOf(one);
      const text = answer?.versions[answer.at].text;
      if (one !== round && !text) continue; // the model was not asked, or failed
      const content = withFiles(one.text, one.files);
      if (content) turns.push({ role: "user", content });
      if (one !== round || isContinued) turns.push({ role: "assistant", content: text });
    }
    if (conversation.mode === "completion") return { ...body, prompt: turns.map((turn) => turn.content).join("") };
    const system = settings.fields.system.value.trim();
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...turns];
    return { ...body, messages, ...(isContinued && { continue_final_message: true, add_generation_prompt: false }) };
  }

  /** Ask for an answer to a round, in a version of its own; or for more of the version that is shown. */
  async ask(round, isContinued = false) {
    const { conversation } = this.page;
    let answer = this.answerOf(round);
    if (!answer) round.answers.push((answer = { model: this.model, at: 0, versions: [] }));
    const body = this.bodyForVersion(round, answer, isContinued);
    const version = answer.versions[answer.at];
    const control = (this.running = new AbortController());
    const figures = new Figures();
    this.show();
    const element = this.log.lastElementChild.querySelector(".answer");
    this.log.setAttribute("aria-busy", "true");
    this.page.changed();
    try {
      await this.read(body, version, figures, element, control.signal);
    } catch (error) {
      if (control.signal.aborted) version.finish = "stopped";
      else version.error = error.message;
    }
    version.figures = figures.line(version.finish);
    this.page.save(conversation);
    if (this.running !== control) return;
    this.running = null;
    this.log.removeAttribute("aria-busy");
    if (this.page.conversation === conversation) {
      this.redraw(round);
      this.follow();
    }
    this.page.changed();
  }

  bodyForVersion(round, answer, isContinued) {
    if (isContinued) {
      const version = answer.versions[answer.at];
      Object.assign(version, { error: "", finish: "" });
      return this.bodyFor(round, true);
    }
    answer.versions.push({ text: "", thought: "", error: "", finish: "", figures: "waiting…" });
    answer.at = answer.versions.length - 1;
    return this.bodyFor(round, false);
  }

  async read(body, version, figures, element, signal) {
    const isChat = "messages" in body;
    const response = await asked(isChat ? "v1/chat/completions" : "v1/completions", body, signal);
    const grown = new Growing(element, version, isChat, this);
    const line = element.querySelector(".figures");
    let kept = performance.now();
    try {
      for await (const event of eventsOf(response)) {
        signal.throwIfAborted(); // data read before the stop may hold further events
        if (event.error) throw new ServerError(event.error);
        const choice = event.choices?.[0];
        const text = (isChat ? choice?.delta?.content : choice?.text) ?? "";
        const thought = choice?.delta?.reasoning_content ?? "";
        if (thought) grown.think(thought);
        if (text) grown.say(text);
        version.finish = choice?.finish_reason ?? version.finish;
        figures.count(event.usage, text || thought);
        line.textContent = figures.line(version.finish);
        if (performance.now() - kept < KEPT_MS) continue;
        kept = performance.now();
        this.page.save(this.page.conversation);
      }
    } finally {
      grown.end();
    }
  }

  stop() {
    this.running?.abort();
  }
}

/** An answer that grows: the version's text and its elements. */
class Growing {
  constructor(element, version, isChat, column) {
    Object.assign(this, { element, version, isChat, column });
    const turn = element.querySelector(".turn.assistant"); // one that is continued
    if (turn) this.begin(turn);
  }

  begin(turn) {
    this.turn = turn;
    turn.replaceChildren();
    turn.classList.add("growing");
    this.markdown = this.isChat ? new Markdown(turn) : null;
    if (this.markdown) {
      this.markdown.after = () => this.column.follow();
      this.markdown.write(this.version.text);
    } else {
      turn.append((this.node = document.createTextNode(this.version.text)));
    }
  }

  say(text) {
    if (!this.turn) {
      const turn = made("div", "turn assistant");
      this.element.lastElementChild.before(turn); // the tools
      this.begin(turn);
    }
    this.version.text += text;
    if (this.markdown) return this.markdown.write(text);
    this.node.appendData(text);
    this.column.follow();
  }

  think(text) {
    if (!this.thought) {
      const details = this.element.querySelector("details") ?? this.column.thoughtOf("");
      details.open = true;
      this.element.prepend(details);
      this.thought = details.lastElementChild;
      this.thought.append("");
    }
    this.version.thought += text;
    this.thought.append(text);
    this.column.follow();
  }

  end() {
    this.markdown?.end();
  }
}
