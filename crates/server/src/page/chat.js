// ---- What is kept ----
// One entry a chat, so that a damaged one damages no other. Nothing that is read is trusted.

const CHAT = "ironstar/chat/";
const SETTINGS = "ironstar/settings";

const isText = (value) => typeof value === "string";

/** A chat as it must be, from whatever is stored; null where it is not one. */
function chatFrom(id, text) {
  try {
    const { title, updated, messages } = JSON.parse(text);
    const whole = Array.isArray(messages) && messages.every((message) =>
      ["user", "assistant"].includes(message?.role) && isText(message.content));
    if (!whole) return null;
    for (const message of messages) {
      if (!isText(message.reasoning)) delete message.reasoning;
      if (!isText(message.error)) delete message.error;
      message.facts = Object.fromEntries(Object.entries(message.facts ?? {}).filter(
        ([name, fact]) => ["number", "boolean"].includes(typeof fact) ||
          (name === "end" && isText(fact))));
      message.images = (Array.isArray(message.images) ? message.images : []).filter(isImage);
    }
    const name = isText(title) ? title : "Untitled";
    return { id, title: name, updated: Number(updated) || 0, messages };
  } catch { return null; }
}

const isImage = (value) => isText(value) && /^data:image\/(png|jpeg);base64,/.test(value);

const store = {
  chats() {
    const found = [];
    try {
      for (const key of Object.keys(localStorage).filter((key) => key.startsWith(CHAT))) {
        const id = key.slice(CHAT.length);
        found.push(chatFrom(id, localStorage.getItem(key)) ?? { id, damaged: true, updated: 0 });
      }
    } catch { /* A browser may forbid the store; chats then last as long as the page. */ }
    return found;
  },
  save(chat) {
    const { title, updated, messages } = chat;
    try {
      localStorage.setItem(CHAT + chat.id, JSON.stringify({ title, updated, messages }));
    } catch {
      notify("This browser does not keep the chat: its store is full or closed. Delete old chats.");
    }
  },
  remove(id) { try { localStorage.removeItem(CHAT + id); } catch { /* as above */ } },
  settings() {
    const clean = { system: "", model: "", temperature: "", top_p: "", max_tokens: "", effort: "" };
    try {
      const kept = JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
      for (const name in clean) if (isText(kept[name])) clean[name] = kept[name];
    } catch { /* Damaged settings are as none. */ }
    return clean;
  },
  keep(settings) {
    try { localStorage.setItem(SETTINGS, JSON.stringify(settings)); } catch { /* as above */ }
  },
  key(value) {
    try {
      if (value !== undefined) sessionStorage.setItem("ironstar/key", value);
      return sessionStorage.getItem("ironstar/key") ?? "";
    } catch { return this.lastKey = value ?? this.lastKey ?? ""; }
  },
};

// ---- State ----

const freshId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
const freshChat = () => ({ id: freshId(), title: "New chat", updated: Date.now(), messages: [] });

let settings = store.settings();
let chats = store.chats();
let chat = freshChat();
/** The model: its name, the tokens it can hold, whether it sees. */
let model = { name: "", context: 0, vision: false, names: [] };
/** The answer that is being written, or null. */
let running = null;
/** Images that go with the next question. */
let images = [];

// ---- The server ----

function headers() {
  const key = store.key().trim();
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

/** Throws what the server says, with its status. */
async function refuse(response) {
  const text = await response.text();
  let message = "";
  try { message = JSON.parse(text).error.message; } catch { message = text.slice(0, 500); }
  const told = isText(message) && message ? message : response.statusText;
  throw Object.assign(new Error(told || `status ${response.status}`), { status: response.status });
}

async function loadModel() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) await refuse(response);
    const { data } = await response.json();
    const [first] = data;
    const sees = first.capabilities?.vision === true ||
      (Array.isArray(first.input_modalities) && first.input_modalities.includes("image"));
    const context = Number(first.context_length) || 0;
    model = { name: String(first.id), context, vision: sees, names: data.map((m) => `${m.id}`) };
    notify("");
  } catch (error) {
    notify(error.status === 401 ? "This server wants an API key: enter it in the settings."
      : `The server does not say which model it has: ${error.message}`);
  }
  showModel();
}

/** Yields the objects of a stream of events; comments and other fields are skipped. */
async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + decoder.decode(value, { stream: !done })).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
      if (done) throw new Error("The connection ended before the answer did.");
    }
  } finally {
    // Also where the reader of these events has seen enough.
    reader.cancel().catch(() => {});
  }
}

/** The body of a request for the answer after a chat's messages. */
function request(messages) {
  const list = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const { role, content, reasoning, images = [] } of messages) {
    if (role === "assistant") {
      // An answer that failed before its first word is no turn.
      if (content || reasoning) {
        list.push({ role, content, ...(reasoning && { reasoning_content: reasoning }) });
      }
    } else if (images.length) {
      const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
      list.push({ role, content: [...parts, { type: "text", text: content }] });
    } else list.push({ role, content });
  }
  const body = { messages: list, stream: true, stream_options: { include_usage: true } };
  if (model.names.includes(settings.model)) body.model = settings.model;
  for (const name of ["temperature", "top_p", "max_tokens"]) {
    if (settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.effort) body.reasoning_effort = settings.effort;
  return body;
}

// ---- Asking ----

function send(text) {
  if (running || !(text.trim() || images.length)) return;
  if (!chat.messages.length) chat.title = text.trim().replace(/\s+/g, " ").slice(0, 60) || "Image";
  chat.messages.push({ role: "user", content: text, images });
  images = [];
  showImages();
  answer();
}

/** Asks for the answer to the last message; errors end up in the answer's place. */
async function answer() {
  const target = chat;
  const message = { role: "assistant", content: "", facts: {} };
  const body = request(target.messages);
  target.messages.push(message);
  const run = { chat: target, message, abort: new AbortController(), sent: performance.now(),
    tokens: 0, first: 0, last: 0, thought: 0, saved: performance.now() };
  running = run;
  if (!chats.includes(target)) chats.push(target);
  keep(target);
  show();
  toEnd();
  say("The answer is being written.");
  const clock = setInterval(() => showRunning(run), 500);
  try {
    const response = await fetch("/v1/chat/completions", { method: "POST", headers: headers(),
      body: JSON.stringify(body), signal: run.abort.signal });
    if (!response.ok) await refuse(response);
    for await (const event of events(response)) take(run, event);
    say("The answer is complete.");
  } catch (error) {
    if (run.abort.signal.aborted) {
      message.facts.end = "stopped";
      say("Stopped.");
    } else {
      message.error = error instanceof TypeError
        ? `The server cannot be reached (${error.message}).` : error.message;
      message.facts.status = error.status;
      say(`Error: ${message.error}`);
    }
  }
  clearInterval(clock);
  finish(run);
}

/** Takes one event into the answer. */
function take(run, event) {
  if (event.error) throw new Error(event.error.message ?? "The server failed.");
  const { message } = run;
  const choice = event.choices?.[0];
  if (event.usage) {
    message.facts.prompt = event.usage.prompt_tokens;
    message.facts.tokens = event.usage.completion_tokens;
    message.facts.cached = event.usage.prompt_tokens_details?.cached_tokens;
  }
  if (choice?.finish_reason) message.facts.end = choice.finish_reason;
  const { content, reasoning_content: reasoning } = choice?.delta ?? {};
  if (!content && !reasoning) return;
  run.last = performance.now();
  run.first ||= run.last;
  run.tokens++;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  if (content) {
    if (message.reasoning) run.thought ||= run.last;
    message.content += content;
  }
  if (run.last - run.saved > 2000) {
    run.saved = run.last;
    keep(run.chat);
  }
  run.frame ||= requestAnimationFrame(() => { run.frame = 0; showRunning(run); });
}

function finish(run) {
  const { facts } = run.message;
  facts.exact = facts.tokens !== undefined;
  facts.tokens ??= run.tokens;
  facts.first = run.first ? run.first - run.sent : 0;
  facts.rate = rate(facts.tokens, run);
  facts.thought = run.message.reasoning ? (run.thought || run.last) - run.first : 0;
  if (run.frame) cancelAnimationFrame(run.frame);
  running = null;
  keep(run.chat);
  show();
}

/** Tokens a second: the first token ends the wait, so it is not of the time that is measured. */
const rate = (tokens, { first, last }) => last > first ? (tokens - 1) * 1000 / (last - first) : 0;

function regenerate() {
  if (running || chat.messages.at(-1)?.role !== "assistant") return;
  chat.messages.pop();
  answer();
}

function stop() { running?.abort.abort(); }

function keep(target) {
  // A chat that was deleted while its answer came stays deleted.
  if (!chats.includes(target)) return;
  target.updated = Date.now();
  store.save(target);
}

// ---- Showing ----

const say = (text) => { $("spoken").textContent = text; };
/** Views of the chat's messages, in their order. */
let views = [];
/** Answers whose reasoning somebody unfolded. */
const unfolded = new WeakSet();

function show() {
  showSessions();
  const atEnd = isAtEnd();
  views = chat.messages.map(view);
  $("log").replaceChildren(...(views.length ? views.map((one) => one.node) : [hello()]));
  $("stop").hidden = !running;
  $("send").hidden = running !== null;
  document.title = chat.messages.length ? `${chat.title} · ironstar` : "ironstar";
  showGauges();
  if (atEnd) toEnd();
}

function hello() {
  const keys = [["Enter", "sends"], ["Shift+Enter", "new line"], ["Esc", "stops"],
    ["Ctrl+K", "new chat"], ["↑", "edits the last message"]];
  const line = keys.flatMap(([key, what], at) =>
    [at ? " · " : "", el("kbd", {}, key), ` ${what}`]);
  return el("div", { id: "hello" }, el("h2", {}, model.name || "ironstar"), el("p", {}, ...line));
}

function view(message, at) {
  const last = at === chat.messages.length - 1;
  return message.role === "user" ? userView(message, at) : answerView(message, last);
}

function action(label, onclick) {
  return el("button", { className: "plain", type: "button", textContent: label, onclick });
}

function userView(message, at) {
  const lastAsked = chat.messages.findLastIndex((other) => other.role === "user") === at;
  const pictures = message.images.map((src) => el("img", { src, alt: "attached image" }));
  const tail = el("div", { className: "tail" });
  const node = el("div", { className: "message user" }, ...pictures,
    el("div", { className: "text", dir: "auto" }, message.content), tail);
  if (lastAsked && !running) {
    const edit = action("Edit", () => editMessage(node, message, at));
    edit.dataset.does = "edit";
    tail.append(edit);
  }
  return { node };
}

/** Puts a field in a message's place; saving asks again from there. */
function editMessage(node, message, at) {
  const field = el("textarea", { value: message.content, rows: 3 });
  field.setAttribute("aria-label", "Edit message");
  const cancel = () => { show(); $("question").focus(); };
  const save = () => {
    if (!field.value.trim() && !message.images.length) return;
    chat.messages.length = at + 1;
    message.content = field.value;
    answer();
    $("question").focus();
  };
  field.onkeydown = (event) => {
    if (event.key === "Escape") { event.stopPropagation(); cancel(); }
    if (isSending(event)) { event.preventDefault(); save(); }
  };
  const ends = el("div", { className: "ends" }, el("button", { type: "button",
    textContent: "Cancel", onclick: cancel }), el("button", { className: "main" }, "Ask again"));
  const form = el("form", {}, field, ends);
  form.onsubmit = (event) => { event.preventDefault(); save(); };
  node.replaceChildren(form);
  field.focus();
}

function answerView(message, last) {
  const thoughts = el("div", { dir: "auto" });
  const summary = el("summary");
  const thinking = el("details", { className: "thought", open: unfolded.has(message) },
    summary, thoughts);
  summary.onclick = () => unfolded[thinking.open ? "delete" : "add"](message);
  const prose = new Prose();
  const waiting = el("div", { className: "waiting" });
  const node = el("div", { className: "message assistant" }, thinking, prose.node, waiting);
  const update = (run) => {
    const reasoning = message.reasoning ?? "";
    thinking.hidden = !reasoning;
    grow(thoughts, reasoning);
    const busy = run && !message.content;
    const span = busy ? performance.now() - run.first : message.facts?.thought ||
      (run?.thought ? run.thought - run.first : 0);
    const lasted = span >= 50 ? ` for ${seconds(span)}` : "";
    summary.textContent = `${busy ? "Thinking" : "Thought"}${lasted}`;
    if (!thinking.hidden || message.content) prose.show(message.content);
    waiting.hidden = !run || Boolean(reasoning || message.content);
    if (!waiting.hidden) {
      waiting.textContent = `Waiting for the first word, ${seconds(performance.now() - run.sent)}`;
    }
  };
  const run = running?.message === message ? running : null;
  update(run);
  if (!run) {
    if (message.error) node.append(errorBox(message));
    node.append(answerTail(message, last));
  }
  return { node, update };
}

/** Adds to a text what is new of it. */
function grow(node, text) {
  const shown = node.firstChild?.data ?? "";
  if (!node.firstChild || !text.startsWith(shown)) node.textContent = text;
  else if (text.length > shown.length) node.firstChild.appendData(text.slice(shown.length));
}

function errorBox(message) {
  const box = el("div", { className: "error" }, message.error);
  if (message.facts?.status === 401) {
    box.append(el("button", { textContent: "Enter the API key", onclick: configure }));
  }
  return box;
}

function answerTail(message, last) {
  const tail = el("div", { className: "tail" });
  if (message.content) {
    const copy = action("Copy", () => copyText(message.content, copy));
    tail.append(copy);
  }
  if (last && !running) tail.append(action("Regenerate", regenerate));
  tail.append(el("span", { className: "facts" }, factsOf(message)));
  return tail;
}

/** What is known of an answer's making, in a line. */
function factsOf({ facts = {} }) {
  const { tokens, rate, first, prompt, cached, end, exact } = facts;
  const told = [];
  if (end === "stopped") told.push("stopped");
  if (end === "length") told.push("cut at the token limit");
  if (tokens > 0) told.push(`${exact ? "" : "about "}${number(tokens)} tokens`);
  if (rate > 0) told.push(`${rate.toFixed(1)} tokens/s`);
  if (first > 0) told.push(`first after ${seconds(first)}`);
  if (cached > 0) told.push(`${number(cached)} of ${number(prompt)} prompt tokens reused`);
  return told.join(" · ");
}

/** Shows what came since the last frame. */
function showRunning(run) {
  if (run !== running || run.chat !== chat) return;
  const atEnd = isAtEnd();
  views.at(-1)?.update?.(run);
  showGauges();
  if (atEnd) toEnd();
  else $("latest").hidden = false;
}

function showGauges() {
  const told = chat.messages.filter((message) => message.facts?.prompt > 0);
  const last = chat.messages.at(-1);
  const live = running?.chat === chat ? running : null;
  const pace = live ? rate(live.tokens, live) : last?.facts?.rate ?? 0;
  $("speed").textContent = pace > 0 ? `${live ? "≈ " : ""}${pace.toFixed(1)} tokens/s` : "";
  const base = told.at(-1)?.facts;
  const used = (base ? base.prompt + base.tokens : 0) + (live ? live.tokens : 0);
  const about = live || (last && last !== told.at(-1)) ? "≈ " : "";
  $("context").parentElement.hidden = !model.context;
  $("context").value = model.context ? Math.min(1, used / model.context) : 0;
  $("room").textContent = `${used ? about : ""}${number(used)} of ${number(model.context)} tokens`;
}

function showModel() {
  $("model").textContent = model.name || "ironstar";
  $("attach").hidden = !model.vision;
  const select = $("settings").querySelector("select[name=model]");
  select.replaceChildren(...model.names.map((name) => el("option", {}, name)));
  $("names").hidden = model.names.length < 2;
  show();
}

const isAtEnd = () => {
  const log = $("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
};

function toEnd() {
  $("log").scrollTop = $("log").scrollHeight;
  $("latest").hidden = true;
}

// ---- The list of chats ----

function showSessions() {
  const sorted = [...chats].sort((a, b) => b.updated - a.updated);
  $("sessions").replaceChildren(...sorted.map(sessionRow));
}

function sessionRow(one) {
  const title = one.damaged ? "Damaged chat" : one.title;
  const open = el("button", { className: one.damaged ? "open damaged" : "open", title,
    textContent: title, onclick: () => choose(one) });
  const row = el("li", { className: one.id === chat.id ? "current" : "" }, open);
  if (one.id === chat.id) open.setAttribute("aria-current", "true");
  const button = (label, does, onclick) => {
    const node = action(label, onclick);
    node.setAttribute("aria-label", `${does} ${title}`);
    node.title = does;
    row.append(node);
  };
  if (!one.damaged) {
    button("✎", "Rename", () => rename(one, row));
    open.onkeydown = (event) => { if (event.key === "F2") rename(one, row); };
  }
  button("✕", "Delete", () => remove(one));
  return row;
}

function choose(one) {
  if (one.damaged) {
    notify("This chat cannot be read: what the browser kept of it is damaged. It can be deleted.");
    return;
  }
  chat = one;
  document.body.classList.remove("drawn");
  show();
  toEnd();
  $("question").focus();
}

function rename(one, row) {
  const field = el("input", { value: one.title });
  field.setAttribute("aria-label", "Name of the chat");
  let done = false;
  const end = (save) => {
    if (done) return;
    done = true;
    if (save && field.value.trim()) {
      one.title = field.value.trim().slice(0, 200);
      store.save(one);
    }
    // Not at once: this may run while the list is being replaced.
    setTimeout(show);
  };
  field.onblur = () => end(true);
  field.onkeydown = (event) => {
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") { event.stopPropagation(); end(false); }
  };
  row.replaceChildren(field);
  field.select();
}

function remove(one) {
  if (!one.damaged && !confirm(`Delete "${one.title}"?`)) return;
  if (running?.chat === one) stop();
  chats = chats.filter((other) => other !== one);
  store.remove(one.id);
  if (one.id === chat.id) chat = freshChat();
  show();
  $("question").focus();
}

function newChat() {
  choose(freshChat());
}

// ---- Settings and images ----

function configure() {
  const { elements } = $("settings").querySelector("form");
  for (const name in settings) elements[name].value = settings[name];
  if (!elements.model.value) elements.model.selectedIndex = 0;
  elements.key.value = store.key();
  $("settings").returnValue = "";
  $("settings").showModal();
}

$("settings").onclose = () => {
  if ($("settings").returnValue === "save") {
    const { elements } = $("settings").querySelector("form");
    for (const name in settings) settings[name] = elements[name].value;
    store.keep(settings);
    store.key(elements.key.value.trim());
    loadModel();
  }
  $("question").focus();
};
$("cancel").onclick = () => $("settings").close();

function showImages() {
  $("images").replaceChildren(...images.map((src, at) => {
    const drop = el("button", { type: "button" }, el("img", { src, alt: `image ${at + 1}` }));
    drop.onclick = () => { images.splice(at, 1); showImages(); };
    drop.setAttribute("aria-label", `Remove image ${at + 1}`);
    return drop;
  }));
}

$("file").onchange = async () => {
  for (const file of $("file").files) {
    const reader = new FileReader();
    await new Promise((done) => { reader.onloadend = done; reader.readAsDataURL(file); });
    if (isImage(reader.result)) images.push(reader.result);
    else notify(`${file.name} is no PNG or JPEG image that can be read.`);
  }
  $("file").value = "";
  showImages();
};
$("attach").onclick = () => $("file").click();

// ---- Keys and clicks ----

/** Enter, but not the one that ends a word of an input method. */
const isSending = (event) =>
  event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;

$("ask").onsubmit = (event) => {
  event.preventDefault();
  if (running) return;
  send($("question").value);
  $("question").value = "";
  $("question").focus();
};
$("question").onkeydown = (event) => {
  if (isSending(event)) {
    event.preventDefault();
    $("ask").requestSubmit();
  } else if (event.key === "ArrowUp" && !$("question").value) {
    const button = $("log").querySelector("[data-does=edit]");
    if (button) { event.preventDefault(); button.click(); }
  }
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && !$("settings").open) {
    if (document.body.classList.contains("drawn")) draws(false);
    else stop();
  } else if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (!$("settings").open) newChat();
  }
};
function draws(open) {
  document.body.classList.toggle("drawn", open);
  $("drawer").setAttribute("aria-expanded", String(open));
}
$("drawer").onclick = (event) => { event.stopPropagation(); draws(true); $("new").focus(); };
$("log").onclick = () => draws(false);
let pinned = true;
$("log").onscroll = () => {
  pinned = isAtEnd();
  if (pinned) $("latest").hidden = true;
};
// A keyboard that comes up on a small screen must not cover the end.
new ResizeObserver(() => { if (pinned) toEnd(); }).observe($("log"));
$("latest").onclick = toEnd;
$("new").onclick = newChat;
$("configure").onclick = () => { draws(false); configure(); };
$("stop").onclick = () => { stop(); $("question").focus(); };
$("notice").lastElementChild.onclick = () => notify("");
// What came of an answer outlives the page.
window.onpagehide = () => { if (running) keep(running.chat); };
// Another tab changed a chat: take it, unless it is being answered here.
window.onstorage = (event) => {
  if (event.key !== null && !event.key.startsWith(CHAT)) return;
  chats = store.chats().map((one) => one.id === running?.chat.id ? running.chat : one);
  if ($("log").querySelector("form")) return showSessions();
  if (!running) chat = chats.find((one) => one.id === chat.id && !one.damaged) ?? chat;
  show();
};

const newest = chats.filter((one) => !one.damaged).sort((a, b) => b.updated - a.updated)[0];
if (newest) chat = newest;
show();
toEnd();
loadModel();
