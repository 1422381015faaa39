"use strict";

// ---- The document ----

const $ = (id) => document.getElementById(id);

/** An element; strings among its children become text nodes. */
function el(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function notify(text) {
  $("notice").hidden = !text;
  $("notice").firstElementChild.textContent = text;
}

const number = (n) => n.toLocaleString("en").replaceAll(",", "\u202f");
const seconds = (ms) => `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;

// ---- Markdown ----
// Blocks by lines, then spans by a scan that never looks twice for a closer that is not there: the
// time stays near linear for any text.

const DEPTH_MAX = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const HEADING = /^(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const CELL = /^:?-+:?$/;

/** Cuts a text into blocks `{kind, lines, ..}`; what follows a block never changes it. */
function blocks(lines) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) { at++; continue; }
    const block = blockAt(lines, at);
    block.raw = lines.slice(at, block.end).join("\n");
    found.push(block);
    at = block.end;
  }
  return found;
}

function blockAt(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence && !(fence[1][0] === "`" && fence[2].includes("`"))) return codeAt(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2], end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  let end = at;
  if (line.startsWith(">")) {
    while (end < lines.length && lines[end].startsWith(">")) end++;
    const inner = lines.slice(at, end).map((quoted) => quoted.replace(/^> ?/, ""));
    return { kind: "quote", lines: inner, end };
  }
  if (ITEM.test(line)) return listAt(lines, at);
  if (isTable(lines, at)) {
    for (end = at + 2; end < lines.length && lines[end].includes("|");) end++;
    return { kind: "table", rows: lines.slice(at, end).map(cells), end };
  }
  do end++; while (end < lines.length && !interrupts(lines, end));
  return { kind: "paragraph", text: lines.slice(at, end).join("\n"), end };
}

function codeAt(lines, at, [opening, mark, info]) {
  const indent = opening.indexOf(mark[0]);
  let end = at + 1;
  const closes = (line) => {
    const text = line.trim();
    return text.length >= mark.length && [...text].every((c) => c === mark[0]);
  };
  while (end < lines.length && !closes(lines[end])) end++;
  const body = lines.slice(at + 1, end);
  const strip = (line) => line.slice(Math.min(indent, line.length - line.trimStart().length));
  const text = (indent ? body.map(strip) : body).join("\n");
  return { kind: "code", language: info.trim().split(/\s/)[0], text, end: end + 1 };
}

/** Items with what is indented below them. */
function listAt(lines, at) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    const same = item && item[1].length < first[1].length + 2 && ordered === /\d/.test(item[2]);
    if (!same || RULE.test(lines[end])) break;
    const width = item[1].length + item[2].length + Math.min(item[3].length || 1, 4);
    const inner = [lines[end++].slice(width)];
    while (end < lines.length) {
      const next = lines[end];
      if (next.trim()) {
        const indent = next.length - next.trimStart().length;
        const deeper = indent >= Math.min(width, item[1].length + 2);
        const lazy = lines[end - 1].trim() && !ITEM.test(next) && !interrupts(lines, end);
        if (!deeper && !lazy) break;
        inner.push(next.slice(Math.min(width, indent)));
      } else inner.push("");
      end++;
    }
    items.push(inner);
  }
  while (!lines[end - 1].trim()) end--;
  return { kind: "list", ordered, start: parseInt(first[2], 10), items, end };
}

/** Whether a line ends the paragraph before it. */
function interrupts(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  return !line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line) ||
    line.startsWith(">") || (item && item[3] && (!/\d/.test(item[2]) || /^1\D/.test(item[2]))) ||
    isTable(lines, at);
}

function isTable(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return false;
  const rule = cells(lines[at + 1]);
  return rule.length === cells(lines[at]).length && rule.every((cell) => CELL.test(cell));
}

/** Cells of a table's row; a bar after a backslash or within code is none of its borders. */
function cells(line) {
  const row = [""];
  let code = false;
  const text = line.trim().replace(/^\|/, "");
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") row[row.length - 1] += text[++at];
    else if (text[at] === "|" && !code) row.push("");
    else {
      if (text[at] === "`") code = !code;
      row[row.length - 1] += text[at];
    }
  }
  if (row.length > 1 && !row[row.length - 1].trim()) row.pop();
  return row.map((cell) => cell.trim());
}

function draw(block, depth = 0) {
  switch (block.kind) {
    case "code": return drawCode(block);
    case "rule": return el("hr");
    case "heading": {
      let text = block.text.trimEnd();
      while (text.endsWith("#")) text = text.slice(0, -1);
      return el(`h${block.level}`, { dir: "auto" }, ...spans(text.trim()));
    }
    case "quote": return el("blockquote", {}, ...drawAll(block.lines, depth + 1));
    case "list": {
      const items = block.items.map((lines) => {
        const nodes = drawAll(lines, depth + 1);
        // A short item's text needs no paragraph around it.
        if (nodes[0]?.tagName === "P") nodes.splice(0, 1, ...nodes[0].childNodes);
        return el("li", { dir: "auto" }, ...nodes);
      });
      return el(block.ordered ? "ol" : "ul", block.ordered ? { start: block.start } : {}, ...items);
    }
    case "table": return drawTable(block.rows);
    default: return el("p", { dir: "auto" }, ...spans(block.text));
  }
}

function drawAll(lines, depth) {
  if (depth > DEPTH_MAX) return [el("p", {}, lines.join("\n"))];
  return blocks(lines).map((block) => draw(block, depth));
}

function drawCode({ language, text }) {
  const code = el("code", {}, text);
  const copy = el("button", { className: "plain", type: "button", textContent: "Copy" });
  copy.onclick = () => copyText(code.textContent, copy);
  const pre = el("pre", { tabIndex: 0 }, code);
  return el("div", { className: "block" }, el("div", {}, el("span", {}, language), copy), pre);
}

function drawTable([head, rule, ...rows]) {
  const align = rule.map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "");
  const row = (tag, texts) => el("tr", {}, ...head.map((_, column) => {
    const cell = el(tag, { dir: "auto" }, ...spans(texts[column] ?? ""));
    cell.style.textAlign = align[column];
    return cell;
  }));
  const body = el("tbody", {}, ...rows.map((texts) => row("td", texts)));
  const table = el("table", {}, el("thead", {}, row("th", head)), body);
  return el("div", { className: "scroll", tabIndex: 0 }, table);
}

/** The address if its scheme is harmless, else nothing. */
function safeAddress(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch { return null; }
}

function link(address, children) {
  const rel = "noopener noreferrer nofollow";
  return el("a", { href: address, title: address, rel, target: "_blank" }, ...children);
}

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const WORD = /[\p{L}\p{N}_]/u;
const SPACE = /\s|^$/;
const at1 = (text, at) => text[at] ?? "";

/** Nodes of a text with code, emphasis and links. */
function spans(text, depth = 0, linked = false) {
  const nodes = [];
  let plain = "";
  const push = (node) => { if (plain) nodes.push(plain); plain = ""; nodes.push(node); };
  const absent = new Set();
  const find = (closer, from) => {
    if (absent.has(closer)) return -1;
    const at = text.indexOf(closer, from);
    if (at < 0) absent.add(closer);
    return at;
  };
  const inner = (from, to, link = linked) => spans(text.slice(from, to), depth + 1, link);
  for (let at = 0; at < text.length;) {
    const span = depth < DEPTH_MAX ? spanAt(text, at, find, inner, linked) : null;
    if (!span) plain += text[at++];
    else if (typeof span.node === "string") { plain += span.node; at = span.end; }
    else { push(span.node); at = span.end; }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** The span that begins at a place: its node and its end. */
function spanAt(text, at, find, inner, linked) {
  switch (text[at]) {
    case "\n": return { node: el("br"), end: at + 1 };
    case "\\":
      return /[!-/:-@[-`{-~]/.test(at1(text, at + 1)) && { node: text[at + 1], end: at + 2 };
    case "`": return codeSpan(text, at, find);
    case "!": case "[": return !linked && linkSpan(text, at, find, inner);
    case "<": return cornerSpan(text, at, linked);
    case "h": return !linked && bareLink(text, at);
    case "*": case "_": case "~": return marked(text, at, find, inner);
    default: return null;
  }
}

function codeSpan(text, at, find) {
  let from = at;
  while (text[from] === "`") from++;
  const ticks = text.slice(at, from);
  let close = find(ticks, from);
  while (close >= 0 && text[close + ticks.length] === "`") {
    while (text[close] === "`") close++;
    close = find(ticks, close);
  }
  if (close < 0) return { node: ticks, end: from };
  let code = text.slice(from, close).replaceAll("\n", " ");
  if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
  return { node: el("code", {}, code), end: close + ticks.length };
}

/** `[label](address)`. An image is shown as a link: nothing is fetched from elsewhere. */
function linkSpan(text, at, find, inner) {
  const from = text[at] === "!" ? at + 1 : at;
  if (text[from] !== "[") return null;
  const close = find("]", from);
  if (close < 0 || text[close + 1] !== "(") return null;
  let open = 1, end = close + 2;
  for (const limit = Math.min(text.length, end + 4096); open && end < limit; end++) {
    if (text[end] === "(") open++;
    else if (text[end] === ")") open--;
    else if (text[end] === "\n") break;
  }
  if (open) return null;
  const target = text.slice(close + 2, end - 1).trim().split(/\s/)[0].replace(/^<|>$/g, "");
  const address = safeAddress(target);
  if (!address) return null;
  const label = inner(from + 1, close, true);
  return { node: link(address, label.length ? label : [target]), end };
}

function cornerSpan(text, at, linked) {
  const piece = text.slice(at, at + 2048);
  const line = /^<br *\/?>/i.exec(piece);
  if (line) return { node: el("br"), end: at + line[0].length };
  const found = linked ? null : /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/.exec(piece);
  const address = found && safeAddress(found[1]);
  return address && { node: link(address, [found[1]]), end: at + found[0].length };
}

function bareLink(text, at) {
  if (!text.startsWith("http", at) || WORD.test(at1(text, at - 1))) return null;
  const found = /^https?:\/\/[^\s<>"'`|*]+/.exec(text.slice(at, at + 2048));
  if (!found) return null;
  let shown = found[0].replace(/[.,;:!?\]]{1,8}$/, "");
  if (shown.endsWith(")") && !shown.includes("(")) shown = shown.slice(0, -1);
  const address = safeAddress(shown);
  return address && { node: link(address, [shown]), end: at + shown.length };
}

function marked(text, at, find, inner) {
  for (const [mark, tag] of MARKS) {
    const from = at + mark.length;
    if (!text.startsWith(mark, at) || SPACE.test(at1(text, from))) continue;
    if (mark[0] === "_" && WORD.test(at1(text, at - 1))) continue;
    let close = find(mark, from + 1);
    for (let tries = 0; close >= 0 && tries < 50; tries++) {
      const after = at1(text, close + mark.length);
      const part = mark.length === 1 && (after === mark || text[close - 1] === mark);
      const fits = !SPACE.test(text[close - 1]) && !(mark[0] === "_" && WORD.test(after));
      if (fits && !part) {
        // Of three closing stars the first belongs to what is within.
        const wide = mark.length === 2 && after === mark[0] ? 1 : 0;
        const node = el(tag, {}, ...inner(from, close + wide));
        return { node, end: close + wide + mark.length };
      }
      close = find(mark, close + (part ? 2 : 1));
    }
  }
  return null;
}

/** Shows a growing text: blocks that did not change stay, and so do selections in them. */
class Prose {
  constructor() { this.node = el("div", { className: "prose" }); this.shown = []; }

  show(text) {
    const next = blocks(text.split(/\r\n?|\n/));
    let same = 0;
    while (same < this.shown.length && this.shown[same].raw === next[same]?.raw) same++;
    for (let at = same; at < next.length; at++) {
      const old = this.node.children[at], block = next[at], before = this.shown[at];
      const grows = before?.kind === "code" && block.kind === "code" &&
        before.language === block.language;
      if (grows) old.querySelector("code").textContent = block.text;
      else if (old) old.replaceWith(draw(block));
      else this.node.append(draw(block));
    }
    while (this.node.children.length > next.length) this.node.lastElementChild.remove();
    this.shown = next;
  }
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A page that came without TLS from another machine has no clipboard.
    const area = el("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
  button.focus();
}
