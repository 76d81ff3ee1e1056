// Calls of the server, with the key; its errors; its streams.

let key = "";

/** Use a key for all calls from now on; "" is none. */
export function useKey(text) {
  key = text;
}

/** An error response of the server, with its message. */
export class ServerError extends Error {
  constructor(error, status) {
    const kind = [status && `HTTP ${status}`, error.code ?? error.type].filter(Boolean).join(", ");
    super(kind ? `${error.message} (${kind})` : error.message);
    this.status = status;
  }
}

/** Return the response of a call; `body` is sent as JSON. Throws ServerError. */
export async function asked(path, body, signal) {
  const headers = { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
  const sent = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const response = await fetch(path, { ...sent, headers, signal, credentials: "omit" });
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
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ServerError({ message: "The stream broke off." });
    if (!/[\r\n]/.test(value)) {
      rest += value; // an event of many pieces is looked through once
      continue;
    }
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
