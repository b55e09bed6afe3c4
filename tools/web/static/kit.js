// What all pages are made of: elements, numbers as text, requests, tables, dialogs, plots. Names and contents of the
// broker reach the page as text only: nothing here parses HTML.

// ---- elements ----

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element: h("a", {href: "#/"}, "text", other). Attributes that begin with `on` are listeners. */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element, likewise. */
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const part = (...names) => names.map(encodeURIComponent).join("/");
export const link = (path, text) => h("a", { href: `#/${path}` }, text);
export const tag = (text, kind = "") => h("span", { class: `tag ${kind}` }, text);

// ---- numbers ----

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (value) => (value === null || value === undefined ? "–" : grouped.format(value));

/** A number with its noun: `1 message`, `2 messages`; `many` where no s does it. */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function rate(value) {
  if (!value) return "0/s";
  return value < 10 ? `${value.toFixed(1)}/s` : `${grouped.format(value)}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 10 ? value.toFixed(1) : grouped.format(value)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

export function duration(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0 s";
  const shown = [];
  for (const [name, size] of units.slice(first, first + 2)) {
    const number = Math.floor(seconds / size);
    seconds -= number * size;
    if (number) shown.push(`${number} ${name}`);
  }
  return shown.join(" ");
}

export const moment = (milliseconds) => new Date(milliseconds).toLocaleString();

// ---- requests ----

/** A request that was refused: `status`, and a text for people. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Ask the API. Returns the value; throws Refused. Calls `onUnauthorized` if nobody is logged in. */
export async function ask(path, { method = "GET", body = undefined } = {}) {
  let answer;
  try {
    answer = await fetch(`/api/${path}`, {
      method,
      headers: { "X-Qstore-Page": "1", ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    throw new Refused(0, "The console does not answer.");
  }
  if (answer.ok) return answer.status === 204 || answer.status === 201 ? null : answer.json();
  let reason = answer.statusText;
  try {
    const error = await answer.json();
    reason = typeof error.reason === "string" ? error.reason : JSON.stringify(error.reason ?? error.error);
  } catch {
    // no JSON: the status has to do
  }
  if (answer.status === 401 && reason === "Login failed" && ask.onUnauthorized) ask.onUnauthorized();
  throw new Refused(answer.status, reason);
}

/** Say something for some seconds. */
export function say(text) {
  const note = h("div", {}, text);
  document.getElementById("notes").append(note);
  setTimeout(() => note.remove(), 6000);
}

/** Do something that a person asked for, and say how it went. Returns whether it succeeded. */
export async function attempt(done, work) {
  try {
    await work();
  } catch (error) {
    say(error.message);
    return false;
  }
  if (done) say(done);
  return true;
}

// ---- tables ----

const ZEROES = new Set(["0", "0/s", "0 B", "0 B/s", "–"]);

/**
 * A table. Columns are {label, cell(row), num, key}; the first one heads its row, and one without a label has buttons. `sort` is {key, reverse, by(key)} for
 * columns that have a key.
 */
export function table(caption, columns, rows, { empty = "There is nothing here.", sort = null } = {}) {
  if (!rows.length) return h("div", { class: "scroll" }, h("p", { class: "empty" }, empty));
  const heads = columns.map((column) => {
    const isSorted = sort && column.key && sort.key === column.key;
    const label = sort && column.key
      ? h("button", { type: "button", onclick: () => sort.by(column.key) }, column.label)
      : column.label;
    const order = isSorted ? (sort.reverse ? "descending" : "ascending") : null;
    return h("th", { scope: "col", class: column.num ? "num" : null, "aria-sort": order }, label);
  });
  const classOf = (column, content) => (column.num ? (ZEROES.has(content) ? "num zero" : "num") : column.label ? null : "act");
  const cellOf = (column, index, content) => h(index ? "td" : "th", { scope: index ? null : "row", class: classOf(column, content) }, content);
  const lines = rows.map((row) => h("tr", {}, columns.map((column, index) => cellOf(column, index, column.cell(row)))));
  return h("div", { class: "scroll" },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, lines)));
}

export const facts = (pairs) => h("dl", { class: "facts" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

export const tiles = (items, kind = "") => h("dl", { class: `tiles ${kind}` }, items.map(([name, value, more]) =>
  h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : null))));

export function argumentsText(values) {
  return Object.entries(values ?? {}).map(([name, value]) => `${name} = ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
}

// ---- forms and dialogs ----

export const field = (label, input) => h("label", { class: "field" }, h("span", {}, label), input);
export const check = (label, input) => h("label", { class: "check" }, input, label);

/** The values of a form's named fields. */
export function values(form) {
  const found = {};
  for (const input of form.elements) {
    if (input.name) found[input.name] = input.type === "checkbox" ? input.checked : input.value;
  }
  return found;
}

/** A text as a JSON object; empty text is an empty one. */
export function objectOf(text) {
  if (!text.trim()) return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("A JSON object is needed, like {\"x-max-length\": 1000}.");
  return value;
}

/** Ask in a dialog; `work(values)` does it, and its error is shown there. Resolves to whether it was done. */
export function dialog(title, fields, action, work, { danger = false } = {}) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "error", role: "alert", hidden: true });
    const act = h("button", { type: "submit", class: danger ? "danger" : "main" }, action);
    const form = h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), fields, problem,
      h("div", { class: "bar" }, h("button", { type: "button", onclick: () => box.close() }, "Cancel"), act));
    const box = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    let isDone = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      act.disabled = true;
      problem.hidden = true;
      try {
        await work(values(form));
        isDone = true;
        box.close();
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
      } finally {
        act.disabled = false;
      }
    });
    box.addEventListener("close", () => {
      box.remove();
      resolve(isDone);
    });
    document.body.append(box);
    box.showModal();
  });
}

// ---- plots ----

const RANGES = [["10 min", 600], ["1 h", 3600], ["1 day", 86400], ["1 week", 604800]];

/** Buttons that choose how far back plots go. */
export function ranges(chosen, choose) {
  const buttons = RANGES.map(([label, age]) => h("button", {
    type: "button",
    "aria-pressed": age === chosen ? "true" : "false",
    onclick: (event) => {
      for (const each of buttons) each.setAttribute("aria-pressed", each === event.currentTarget ? "true" : "false");
      choose(age);
    },
  }, label));
  return h("div", { class: "bar", role: "group", "aria-label": "How far back" }, buttons);
}

function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value);
}

const short = (value) => (value >= 1e6 ? `${+(value / 1e6).toFixed(1)} M` : value >= 1e4 ? `${+(value / 1e3).toFixed(1)} k` : `${+value.toFixed(1)}`);

/**
 * A plot of lines. `lines` is [{label, points: [[seconds, value]]}], `show` makes text of a value. The legend has the
 * newest values, and those under the pointer.
 */
export function plot(title, lines, age, show) {
  const [width, height, left, bottom] = [600, 170, 44, 18];
  const now = Math.max(Date.now() / 1000, ...lines.flatMap((line) => line.points.slice(-1).map(([at]) => at)));
  const top = niceTop(Math.max(0, ...lines.flatMap((line) => line.points.map(([, value]) => value))));
  const x = (at) => left + (width - left - 4) * (1 - (now - at) / age);
  const y = (value) => 6 + (height - bottom - 6) * (1 - value / top);
  const drawing = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img" });
  for (const share of [0, 0.5, 1]) {
    drawing.append(
      s("line", { class: "grid", x1: left, x2: width - 4, y1: y(top * share), y2: y(top * share) }),
      s("text", { x: left - 6, y: y(top * share) + 4, "text-anchor": "end" }, short(top * share)),
    );
  }
  const format = age > 86400 ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit" };
  for (const share of [0, 0.5, 1]) {
    const at = now - age * (1 - share);
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    drawing.append(s("text", { x: x(at), y: height - 3, "text-anchor": anchor }, new Date(at * 1000).toLocaleString([], format)));
  }
  lines.forEach((line, index) => {
    let before = null;
    let path = "";
    for (const [at, value] of line.points) {
      if (at < now - age) continue;
      path += `${before === null || at - before > age / 20 ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      before = at;
    }
    if (path) drawing.append(s("path", { class: `s${index}`, d: path }));
  });
  const cursor = s("line", { class: "cursor", y1: 6, y2: height - bottom, x1: 0, x2: 0, visibility: "hidden" });
  drawing.append(cursor);
  const shown = lines.map(() => h("b"));
  const when = h("span");
  const legend = h("div", { class: "legend" }, lines.map((line, index) =>
    h("span", {}, h("i", { class: `k${index}` }), `${line.label} `, shown[index])), when);
  const tell = (at) => {
    lines.forEach((line, index) => {
      const point = at === null ? line.points.at(-1) : line.points.reduce((best, each) =>
        (best === null || Math.abs(each[0] - at) < Math.abs(best[0] - at) ? each : best), null);
      shown[index].textContent = point ? show(point[1]) : "–";
    });
    when.textContent = at === null ? "" : new Date(at * 1000).toLocaleTimeString();
  };
  tell(null);
  drawing.setAttribute("aria-label", `${title}: ${legend.textContent}`);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const across = ((event.clientX - box.left) / box.width) * width;
    if (across < left) return;
    const at = now - age * (1 - (across - left) / (width - left - 4));
    cursor.setAttribute("x1", across);
    cursor.setAttribute("x2", across);
    cursor.setAttribute("visibility", "visible");
    tell(at);
  });
  drawing.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tell(null);
  });
  return h("div", { class: "card" }, h("h3", {}, title), drawing, legend);
}

/** Points of a level, from the rows of the history. */
export const level = (history, name) => {
  const at = history.series.indexOf(name) + 1;
  return history.points.map((row) => [row[0], row[at]]);
};

/** Points of the growth of a counter per second, likewise. A counter that falls has begun anew. */
export const growth = (history, name) => {
  const at = history.series.indexOf(name) + 1;
  const found = [];
  for (let index = 1; index < history.points.length; index += 1) {
    const [before, row] = [history.points[index - 1], history.points[index]];
    if (row[0] > before[0] && row[at] >= before[at]) found.push([row[0], (row[at] - before[at]) / (row[0] - before[0])]);
  }
  return found;
};

/** A bar that shows a share from 0 to 1. */
export function meter(share, label) {
  const kind = share >= 0.95 ? "full" : share >= 0.8 ? "near" : "used";
  return s("svg", { class: "meter", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { width: 100, height: 10, rx: 2 }), s("rect", { class: kind, width: Math.max(share > 0 ? 1 : 0, share * 100), height: 10, rx: 2 }));
}
