// What every part of the page needs: elements, the clipboard, files to save. Text is set as text, never as HTML.

/** Return an element with a class and a text; `more` are attributes. */
export function made(tag, className = "", text = "", more = {}) {
  const found = document.createElement(tag);
  if (className) found.className = className;
  found.textContent = text;
  for (const [name, value] of Object.entries(more)) found.setAttribute(name, value);
  return found;
}

/** Return a button that does something, and sends no form. */
export function button(text, action, label = "", className = "") {
  const found = made("button", className, text, { type: "button", ...(label && { "aria-label": label, title: label }) });
  found.addEventListener("click", action);
  return found;
}

/** Copy a text, and show on the button that it was done. */
export async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = made("textarea", "off-screen"); // over HTTP from elsewhere there is no clipboard object
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
    shown.focus();
  }
  const before = (shown.dataset.text ??= shown.textContent);
  shown.textContent = "Copied";
  setTimeout(() => (shown.textContent = before), 1500);
}

/** Let the browser save a text as a file. */
export function saved(name, text, type) {
  const link = made("a", "", "", { download: name });
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const notices = document.getElementById("notices");

/** Tell something that happened, for screen readers too; it goes with a click on it, or after a while. */
export function tell(text) {
  const notice = made("p", "notice", text);
  notice.append(button("×", () => notice.remove(), "Dismiss"));
  notices.append(notice);
  if (notices.childElementCount > 3) notices.firstElementChild.remove();
  setTimeout(() => notice.remove(), 15_000);
}
