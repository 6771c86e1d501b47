// What the page asks the server for: requests, and answers that come as streams.

// The connection failed or broke: the server may come back.
export class Unreachable extends Error {}

// The server's own refusal.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The answer to a GET, or to a POST where there is a body.
export async function ask(path, { key, body, signal } = {}) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    throw new Unreachable(error.message);
  }
  if (response.ok) return response;
  const text = await response.text().catch(() => "");
  let message = text;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // Something between us and the server has answered: what it said is shown as it came.
  }
  throw new Refused(response.status, message || response.statusText);
}

// Cuts a stream of server-sent events, which arrives in pieces of any size, into the data of its events.
export class EventParser {
  rest = "";
  data = [];
  afterReturn = false; // the last piece ended with "\r": a "\n" at the beginning of the next one belongs to it

  *feed(text) {
    if (text === "") return;
    this.rest += this.afterReturn && text[0] === "\n" ? text.slice(1) : text;
    this.afterReturn = text.endsWith("\r");
    for (;;) {
      const end = /\r\n|\n|\r/.exec(this.rest);
      if (!end) return;
      const line = this.rest.slice(0, end.index);
      this.rest = this.rest.slice(end.index + end[0].length);
      if (line.startsWith("data:")) this.data.push(line.slice(line[5] === " " ? 6 : 5));
      if (line !== "" || this.data.length === 0) continue;
      yield this.data.join("\n");
      this.data = [];
    }
  }
}

// The objects of a stream up to its "[DONE]".
export async function* chunks(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder(); // keeps the bytes of a character that a piece has cut
  const parser = new EventParser();
  let whole = false;
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw new Unreachable(error.message);
    });
    if (done && !whole) throw new Unreachable("the answer broke off");
    if (done) return;
    for (const data of parser.feed(decoder.decode(value, { stream: true }))) {
      if (data === "[DONE]") {
        whole = true;
        continue;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(chunk.error.code ?? 500, chunk.error.message);
      yield chunk;
    }
  }
}

// False where the signal came first.
export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(!signal?.aborted), milliseconds);
    const end = () => {
      clearTimeout(timer);
      resolve(false);
    };
    signal?.addEventListener("abort", end, { once: true });
  });
}
