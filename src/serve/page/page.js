// A conversation with the server that this page came from. It asks nobody else, keeps what was said in this tab alone
// (sessionStorage), and shows texts as text: nothing that a model says becomes markup.

import { Unreachable, ask, chunks, pause } from "./server.js";

const HEALTH_MS = 2000; // between two looks whether the server is back
const element = (id) => document.getElementById(id);
const list = element("messages"), draft = element("draft"), settings = element("settings"), state = element("state");

// {role: "user" | "assistant", text, note}; an answer that had not begun when the page was left is not there.
let messages = stored("messages", []).filter((message) => message.text !== "");
let running = null; // the AbortController of the answer that is being written
let modelName = "";
const BROKEN = "Broken off";

// ---- what the tab keeps

function stored(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function store(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    state.textContent = "This browser keeps no more: the conversation will be gone when the page is left.";
  }
}

const numberFields = () => [...settings.querySelectorAll("input[type=number]")];
const key = () => stored("key", "");
const textMode = () => settings.elements.mode.value === "text";

function storeSettings() {
  const values = Object.fromEntries(numberFields().map((field) => [field.name, field.value]));
  store("settings", { ...values, mode: settings.elements.mode.value, system: settings.elements.system.value });
}

function restoreSettings() {
  for (const [name, value] of Object.entries(stored("settings", {})))
    if (settings.elements[name]) settings.elements[name].value = value;
}

// ---- the server's life

// Waits for a server that has gone. False where the signal came first.
async function serverIsBack(error, signal) {
  state.textContent = `${error.status ? `503: ${error.message}` : "The server is not reachable"}; retrying`;
  while (await pause(HEALTH_MS, signal)) {
    if (!(await ask("health", { signal }).catch(() => null))) continue;
    state.textContent = "The server is back";
    return true;
  }
  return false;
}

const comesBack = (error) => error instanceof Unreachable || error.status === 503;

// Asks for the model's name, and so whether the server is there and knows the key.
async function connect() {
  for (;;) {
    try {
      const models = await (await ask("v1/models", { key: key() })).json();
      document.title = element("model").textContent = modelName = models.data[0].id;
      state.textContent = "Ready";
      if (models.data[0].tokenizer === null)
        showProblem(new Error("This model has no tokenizer: it takes token ids from programs, and no text from here."));
      return;
    } catch (error) {
      if (comesBack(error) ? await serverIsBack(error) : error.status === 401 && (await askKey())) continue;
      return void showProblem(error);
    }
  }
}

// ---- the API key

let keyAsked = null; // one dialog for all who were refused at once

function askKey() {
  const dialog = element("key-dialog");
  element("key-problem").textContent = key() ? "The server does not know the key that was given." : "";
  keyAsked ??= new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      keyAsked = null;
      resolve(dialog.returnValue === "given");
    }, { once: true });
    dialog.showModal();
  });
  return keyAsked;
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = element("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(key)) {
    element("key-problem").textContent = "A key has letters, digits and signs of ASCII alone.";
    return;
  }
  store("key", key);
  element("key").value = "";
  element("key-dialog").close("given");
});
element("key-cancel").addEventListener("click", () => element("key-dialog").close());

// ---- the conversation

function roleName(role) {
  const names = textMode() ? { user: "Text", assistant: "Continuation" } : { user: "You", assistant: "Model" };
  return names[role];
}

function make(parent, tag, className, text) {
  const child = document.createElement(tag);
  child.className = className;
  child.textContent = text;
  return parent.appendChild(child);
}

function showMessage(message) {
  const item = make(list, "li", message.role, "");
  make(item, "h2", "", roleName(message.role));
  const thought = make(item, "p", "thought", message.thought ?? "");
  const text = make(item, "p", "text", "").appendChild(document.createTextNode(message.text));
  const note = make(item, "p", "note", message.note ?? "");
  element("empty").hidden = true;
  list.scrollTop = list.scrollHeight;
  return { item, thought, text, note };
}

function showAll() {
  list.replaceChildren();
  messages.forEach(showMessage);
  element("empty").hidden = messages.length > 0;
}

function showProblem(error) {
  const noTemplate = error.status === 400 && /no chat template/.test(error.message) && !textMode();
  element("problem-text").textContent = noTemplate
    ? `This model has no chat template: it continues texts, it does not chat.\n${error.message}`
    : error.status ? `${error.status}: ${error.message}` : error.message;
  element("as-text").hidden = !noTemplate;
  element("problem").hidden = false;
  state.textContent = "";
}

function requestBody() {
  const body = { stream: true, stream_options: { include_usage: true } };
  if (modelName) body.model = modelName;
  for (const field of numberFields()) if (field.value !== "") body[field.name] = Number(field.value);
  if (textMode()) return { ...body, prompt: messages.map((message) => message.text).join("") };
  const system = settings.elements.system.value;
  const turns = messages.map(({ role, text, thought }) => ({ role, content: text, ...(thought && { reasoning_content: thought }) }));
  return { ...body, messages: system ? [{ role: "system", content: system }, ...turns] : turns };
}

function noteOf(usage, reason, times) {
  const parts = [];
  if (usage) {
    const seconds = (times.last - times.begin) / 1000;
    parts.push(`${usage.completion_tokens} tokens after ${usage.prompt_tokens}`);
    if (seconds > 0) parts.push(`${(usage.completion_tokens / seconds).toFixed(1)} tokens/s`);
    if (seconds > 0) parts.push(`first after ${((times.first - times.begin) / 1000).toFixed(2)} s`);
  }
  if (reason === "length") parts.push("ended by the limit of tokens");
  return parts.join(" · ");
}

// Whoever sees the end of the conversation goes on seeing it.
function keepingTheEnd(change) {
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  change();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

// Streams one answer into the message.
async function receive(body, message, view, signal) {
  const times = { begin: performance.now(), first: 0, last: 0 };
  let usage = null, reason = null;
  message.text = message.thought = view.text.data = view.thought.textContent = "";
  const path = "prompt" in body ? "v1/completions" : "v1/chat/completions";
  const response = await ask(path, { key: key(), body, signal });
  state.textContent = "Writing";
  for await (const chunk of chunks(response)) {
    usage = chunk.usage ?? usage;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    reason = choice.finish_reason ?? reason;
    const text = choice.text ?? choice.delta?.content, thought = choice.delta?.reasoning_content;
    if (!text && !thought) continue;
    times.last = performance.now();
    times.first ||= times.last;
    message.text += text ?? "";
    message.thought += thought ?? "";
    keepingTheEnd(() => (thought ? view.thought.append(thought) : view.text.appendData(text)));
  }
  message.note = noteOf(usage, reason, times);
  state.textContent = "Ready";
}

// True where the answer is to be asked for anew, from its beginning: its first part may be half a sentence of another
// server's life.
async function recovered(error, message, signal) {
  if (!signal.aborted && comesBack(error) && (await serverIsBack(error, signal))) return true;
  if (signal.aborted) {
    message.note = "Stopped";
    state.textContent = "Stopped";
    return false;
  }
  if (error.status === 401 && (await askKey())) return true;
  showProblem(error);
  message.note = BROKEN;
  return false;
}

// Answers the conversation as it stands.
async function answer() {
  const own = (running = new AbortController());
  const body = requestBody(), message = { role: "assistant", text: "", note: "" };
  const view = showMessage(message);
  messages.push(message);
  setRunning(true, view);
  let whole = false, again = true;
  while (!whole && again) {
    try {
      await receive(body, message, view, own.signal);
      whole = true;
    } catch (error) {
      again = await recovered(error, message, own.signal);
    }
  }
  keepingTheEnd(() => (view.note.textContent = message.note));
  if (!whole && message.text === "" && !message.thought) {
    messages = messages.filter((one) => one !== message);
    view.item.remove();
  }
  if (running === own) setRunning(false, view);
}

function setRunning(on, view) {
  const focused = document.activeElement === element("stop");
  if (!on) running = null;
  element("send").hidden = on;
  element("stop").hidden = !on;
  list.setAttribute("aria-busy", on); // readers hear the whole answer, not each token
  view?.item.classList.toggle("writing", on);
  if (on) element("problem").hidden = true;
  if (focused) draft.focus();
  store("messages", messages);
}

function send() {
  if (running) return;
  if (!settings.checkValidity()) {
    openSettings(true);
    settings.reportValidity();
    return;
  }
  const text = draft.value, last = messages.at(-1);
  if (text.trim() === "" && !(last && (textMode() || last.role === "user"))) return;
  if (text.trim() !== "") {
    messages.push({ role: "user", text });
    showMessage(messages.at(-1));
    draft.value = "";
  }
  openSettings(false, true);
  void answer();
}

const stop = () => running?.abort();

function newConversation() {
  stop();
  messages = [];
  setRunning(false);
  showAll();
  element("problem").hidden = true;
  state.textContent = "Ready";
  draft.focus();
}

// ---- settings, keys, buttons

// `ifCovering`: only where the settings stand in the conversation's place.
function openSettings(open, ifCovering = false) {
  if (ifCovering && !matchMedia("(max-width: 44rem)").matches) return;
  settings.hidden = !open;
  element("settings-button").setAttribute("aria-expanded", open);
}

function showMode() {
  element("system-label").hidden = textMode();
  element("draft-label").textContent = textMode() ? "Text. Leave it empty to continue from the end." : "Message";
  element("send").textContent = textMode() ? "Continue" : "Send";
  for (const [i, item] of [...list.children].entries()) item.firstChild.textContent = roleName(messages[i].role);
}

function closeSettings() {
  openSettings(false);
  element("settings-button").focus();
}

element("settings-button").addEventListener("click", () => {
  openSettings(settings.hidden);
  if (!settings.hidden) settings.querySelector("input:checked").focus();
});
element("settings-close").addEventListener("click", closeSettings);
settings.addEventListener("submit", (event) => event.preventDefault());
settings.addEventListener("input", () => {
  storeSettings();
  showMode();
});
element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
draft.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  if (running) stop();
  else if (!settings.hidden) closeSettings();
});
element("stop").addEventListener("click", stop);
element("new").addEventListener("click", newConversation);
element("again").addEventListener("click", () => {
  element("problem").hidden = true;
  draft.focus();
  if (messages.length === 0) return void connect();
  if (messages.at(-1).note === BROKEN) messages.pop();
  showAll();
  void answer();
});
element("as-text").addEventListener("click", () => {
  settings.elements.mode.value = "text";
  settings.dispatchEvent(new Event("input"));
  draft.focus();
  void answer();
});
window.addEventListener("pagehide", () => {
  if (running) messages.at(-1).note = BROKEN; // what was written so far stays
  store("messages", messages);
});

restoreSettings();
showMode();
showAll();
void connect();
