// Text files that go with a message: chosen or dropped, shown as chips, sent as blocks of code under their names.
import { button, made, tell } from "./dom.js";

const MOST_FILES = 10;
const MOST_BYTES = 256 * 1024; // of one file
const MOST_TOGETHER = 512 * 1024;

/** Return a file's text; throws an error with a reason for one that is too large or no text. */
async function textOf(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${file.size} bytes, more than ${MOST_BYTES}: send a part of it.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch (error) {
    if (!(error instanceof TypeError)) throw new Error(`${file.name} cannot be read: choose it again.`, { cause: error });
  }
  throw new Error(`${file.name} is no text in UTF-8: models of this page read text only.`);
}

/** Return a message with its files, as a model reads it. */
export function withFiles(text, files) {
  const parts = files.map((file) => {
    const longest = Math.max(2, ...[...file.text.matchAll(/`+/g)].map((run) => run[0].length));
    const fence = "`".repeat(longest + 1);
    return `${file.name}:\n${fence}\n${file.text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, text].filter(Boolean).join("\n\n");
}

/** Return the chips of files; `remove(file)`, where given, adds a button to each. */
export function chips(files, remove) {
  return files.map((file) => {
    const chip = made("span", "chip", file.name);
    if (remove) chip.append(button("×", () => remove(file), `Remove ${file.name}`));
    return chip;
  });
}

/** The files of the message that is being written. */
export class Files {
  constructor(list, input, target) {
    this.list = list;
    this.files = [];
    input.addEventListener("change", () => this.add([...input.files]).then(() => (input.value = "")));
    target.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
    target.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }

  async add(given) {
    for (const file of given) {
      try {
        if (this.files.length >= MOST_FILES) throw new Error(`${file.name} was left out: a message takes ${MOST_FILES} files.`);
        const text = await textOf(file);
        const sum = this.files.reduce((all, one) => all + one.text.length, text.length);
        if (sum > MOST_TOGETHER) throw new Error(`${file.name} was left out: the files of a message have ${MOST_TOGETHER} characters at most.`);
        this.files.push({ name: file.name.slice(0, 200), text });
      } catch (error) {
        tell(error.message);
      }
    }
    this.show();
  }

  show() {
    const remove = (file) => {
      this.files = this.files.filter((one) => one !== file);
      this.show();
    };
    this.list.replaceChildren(...chips(this.files, remove));
  }

  /** Return the files and have none. */
  taken() {
    const found = this.files;
    this.files = [];
    this.show();
    return found;
  }
}
