// The parameters of requests: their fields, their values as the API takes them, the server's defaults as placeholders.
import { made } from "./dom.js";

/** Fields of numbers: name, label, the default of the API. Those of the first list are always in sight. */
const FIRST = [
  ["temperature", "Temperature", "1"],
  ["top_p", "Top p", "1"],
  ["max_tokens", "Max tokens", "what is left"],
  ["seed", "Seed", "random"],
];
const MORE = [
  ["top_k", "Top k", "0: all"],
  ["min_p", "Min p", "0"],
  ["typical_p", "Typical p", "1"],
  ["top_n_sigma", "Top n sigma", "0: off"],
  ["xtc_probability", "XTC probability", "0: off"],
  ["xtc_threshold", "XTC threshold", "0.1"],
  ["dry_multiplier", "DRY multiplier", "0: off"],
  ["dry_base", "DRY base", "1.75"],
  ["dry_allowed_length", "DRY length", "2"],
  ["dry_penalty_last_n", "DRY last n", "-1: all"],
  ["presence_penalty", "Presence", "0"],
  ["frequency_penalty", "Frequency", "0"],
  ["repetition_penalty", "Repetition", "1"],
  ["min_tokens", "Min tokens", "0"],
];
const NUMBERS = [...FIRST, ...MORE];
const OTHERS = ["stops", "schema", "reasoning_effort", "enable_thinking", "system"];
const MOST_COMPLETED = 256; // tokens of a completion, for which the server's own default is 16

export class Settings {
  constructor(fields) {
    this.fields = fields;
    for (const [place, list] of [["numbers", FIRST], ["more-numbers", MORE]]) {
      for (const [name, label, standard] of list) {
        const box = made("label", "", `${label} `);
        box.append(made("input", "", "", { name, placeholder: standard, inputmode: "decimal", maxlength: "40" }));
        document.getElementById(place).append(box);
      }
    }
  }

  /** Show a model's own defaults, as /v1/models has them. */
  showDefaults(defaults = {}) {
    for (const [name, , standard] of NUMBERS) {
      const own = defaults[name];
      this.fields[name].placeholder = typeof own === "number" ? String(Number(own.toPrecision(4))) : standard;
    }
  }

  names() {
    return [...NUMBERS.map(([name]) => name), ...OTHERS];
  }

  /** Return the fields that are filled in, as text. */
  asText() {
    const filled = this.names().filter((name) => this.fields[name].value);
    return JSON.stringify(Object.fromEntries(filled.map((name) => [name, this.fields[name].value])));
  }

  /** Fill the fields from such a text; null empties them. */
  fill(text) {
    let found = {};
    try {
      found = JSON.parse(text ?? "{}");
    } catch {
      // not ours: as if there were none
    }
    for (const name of this.names()) this.fields[name].value = typeof found?.[name] === "string" ? found[name] : "";
  }

  /** Return the parameters of a request. What is no number is sent as it is, so that the server reports the error. */
  parameters(mode) {
    const found = mode === "completion" ? { max_tokens: MOST_COMPLETED } : {};
    for (const [name] of NUMBERS) {
      const text = this.fields[name].value.trim();
      if (text) found[name] = Number.isNaN(Number(text)) ? text : Number(text);
    }
    const stop = this.fields.stops.value.split("\n").filter(Boolean);
    if (stop.length) found.stop = stop;
    const schema = this.fields.schema.value.trim();
    if (schema) found.structured_outputs = { json: schema };
    if (mode !== "chat") return found;
    const { reasoning_effort: effort, enable_thinking: thinking } = this.fields;
    if (effort.value.trim()) found.reasoning_effort = effort.value.trim();
    if (thinking.value) found.enable_thinking = thinking.value === "true";
    return found;
  }
}
