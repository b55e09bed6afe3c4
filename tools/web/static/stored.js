// The pages of a store on disk, which is only read: what a restart would deliver, what is damaged, what recovery would do.

import { argumentsText, ask, attempt, bytes, check, count, dialog, facts, field, h, link, meter, part, plural, say, table, tag, tiles } from "/kit.js";

const PAGE_SIZE = 50;
const MAX_SHOWN = 500;

/** The name of a queue for the API, with that of its virtual host in front, and as people see it. */
const keyOf = (row) => (row.vhost ? `${row.vhost}\\x1f${row.queue}` : row.queue);
const shownName = (key) => key.replace("\\x1f", "/");
const hexadecimal = (value) => `0x${value.toString(16)}`;
const heading = (text, sub, ...actions) => h("div", { class: "head" },
  h("div", {}, h("h1", {}, text), h("p", { class: "sub" }, sub)), actions.length ? h("div", { class: "bar" }, actions) : null);
const button = (label, onclick, kind = null) => h("button", { type: "button", onclick, class: kind }, label);

/** A report that a job makes: [found, note]. `found` is null until it has ended. */
async function report(name) {
  const { job, dropped, found } = await ask(`qstore/stored/${name}`);
  if (job.state === "running") return [null, h("p", { class: "note" }, "The store is being read. This page is shown again when that is done.")];
  if (job.state === "failed") return [null, h("p", { class: "note bad", role: "alert" }, job.error)];
  return [found, dropped ? h("p", { class: "note" }, `${count(dropped)} further lines of the report are not shown; the command line shows all.`) : ""];
}

function transactionsTable(rows) {
  return table("Transactions", [
    { label: "Branch", cell: (row) => row.xid }, { label: "Kind", cell: (row) => row.type },
    { label: "State", cell: (row) => tag(row.state, row.state === "in-doubt" ? "doubtful" : "") },
    { label: "Enqueues", num: true, cell: (row) => count(row.enqueues) }, { label: "Dequeues", num: true, cell: (row) => count(row.dequeues) },
  ], rows, { empty: "No transaction is open." });
}

function verdict(store, damage) {
  const lost = damage.filter((each) => !each.loses_nothing).length;
  if (!damage.length) return h("p", { class: "note fine" }, `✓ There is no damage. A restart would deliver ${plural(store.outstanding, "message")}.`);
  return h("p", { class: "note bad" }, `There is damage in ${damage.length === 1 ? "one place" : `${count(damage.length)} places`}`,
    lost ? ", and something is lost. " : ", and nothing is lost. ", link("damage", "Look at it"), ", and plan a ", link("recovery", "recovery"), ".");
}

function overview(place, ctx) {
  ctx.title("Store");
  const again = async () => {
    await attempt("The store is checked again.", () => ask("qstore/stored/check?again=true"));
    ctx.again();
  };
  return async () => {
    const user = await ask("whoami");
    const [found, note] = await report("check");
    if (!found) {
      place.replaceChildren(heading("Store", user.store), note);
      return;
    }
    const [store] = found.store ?? [{}];
    const journals = found.journal ?? [];
    place.replaceChildren(
      heading("Store", `${user.store}: ${store.format}, on disk, read only`, button("Check again", again)),
      note, verdict(store, found.damage ?? []),
      tiles([
        ["Outstanding", count(store.outstanding), "messages"], ["In doubt", count(store.in_doubt), "messages"],
        ["Queues", count(store.queues)], ["Orphans", count(store.orphans)], ["Records", count(store.records)],
        ["Transactions", count(store.transactions)], ["Damage", count(store.damage), "places"],
      ]),
      h("h2", {}, "Journals"), table("Journals", [
        { label: "Queue", cell: (row) => [link(`journal/${part(keyOf(row))}`, shownName(keyOf(row))), " ", row.role === "queue" ? null : tag(row.role), row.torn ? tag("torn tail") : null] },
        { label: "Fill", cell: (row) => (row.fill === null || row.fill === undefined ? "–" : [meter(row.fill, `${Math.round(row.fill * 100)} %`), h("span", { class: "quiet" }, `${Math.round(row.fill * 100)} %`)]) },
        { label: "Outstanding", num: true, cell: (row) => count(row.outstanding) },
        { label: "In doubt", num: true, cell: (row) => count((row.in_doubt_enqueues ?? 0) + (row.in_doubt_dequeues ?? 0)) },
        { label: "Enqueues", num: true, cell: (row) => count(row.enqueues) }, { label: "Dequeues", num: true, cell: (row) => count(row.dequeues) },
        { label: "Files", num: true, cell: (row) => `${count(row.files)} × ${bytes(row.file_size)}` },
        { label: "Oldest live record", cell: (row) => (row.oldest ? `${hexadecimal(row.oldest.rid)} in ${row.oldest.file.split("/").at(-1)}` : "–") },
        { label: "Damage", num: true, cell: (row) => (row.damage ? tag(count(row.damage), "bad") : "0") },
      ], journals, { empty: "The store has no journals." }),
      h("h2", {}, "Transactions"), transactionsTable(found.transaction ?? []),
      h("h2", {}, "Notices"), (found.notice ?? []).length
        ? h("ul", {}, found.notice.slice(0, MAX_SHOWN).map((each) => h("li", {}, each.what ?? each.text ?? each.notice ?? "")))
        : h("p", { class: "quiet" }, "There are none."));
  };
}

/** A list of which one page after the other is read. Returns [element, refresh]. */
function pages(path, caption, columns, empty) {
  let page = 1;
  const place = h("div");
  const show = async () => {
    const found = await ask(`${path}?page=${page}&page_size=${PAGE_SIZE}`);
    const go = (wanted) => () => {
      page = wanted;
      attempt(null, show);
    };
    place.replaceChildren(table(caption, columns, found.items, { empty }), page > 1 || found.has_more
      ? h("div", { class: "pages" }, h("button", { type: "button", disabled: page <= 1, onclick: go(page - 1) }, "Previous"), `Page ${count(page)}`,
        h("button", { type: "button", disabled: !found.has_more, onclick: go(page + 1) }, "Next"))
      : "");
  };
  return [place, show];
}

function journal(place, ctx, name) {
  ctx.title(shownName(name));
  const path = `qstore/stored/queues/${part(name)}`;
  const body = h("div");
  const open = (row) => attempt(null, async () => {
    const found = await ask(`${path}/messages/${row.rid}`);
    const box = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, `Message ${hexadecimal(row.rid)}`),
      facts([["Exchange", found.exchange || "(default)"], ["Key", found.routing_key || "–"], ["Headers", argumentsText(found.headers) || "–"],
        ["Size", `${bytes(found.body_length)}${found.is_cut ? ", the beginning is shown" : ""}`]]),
      h("pre", { tabindex: 0 }, found.body ?? "(the body is not text)"), h("div", { class: "bar" }, button("Close", () => box.close())));
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  });
  const [messages, showMessages] = pages(`${path}/messages`, "Messages", [
    { label: "Record", cell: (row) => button(hexadecimal(row.rid), () => open(row), "plain") },
    { label: "State", cell: (row) => tag(row.state, row.state === "outstanding" ? "" : "doubtful") },
    { label: "Exchange", cell: (row) => row.exchange || "(default)" }, { label: "Key", cell: (row) => row.routing_key || "–" },
    { label: "Headers", cell: (row) => argumentsText(row.headers) || "–" }, { label: "Size", num: true, cell: (row) => bytes(row.body_length) },
  ], "A restart would deliver no message of this queue.");
  const [records, showRecords] = pages(`${path}/records`, "Records", [
    { label: "Record", cell: (row) => (row.rid === null ? "–" : hexadecimal(row.rid)) }, { label: "Type", cell: (row) => h("span", { class: "whole" }, row.type) },
    { label: "Of", cell: (row) => (row.dequeued_rid ? hexadecimal(row.dequeued_rid) : "–") },
    { label: "Transaction", cell: (row) => row.xid ?? "–" }, { label: "Flags", cell: (row) => (row.flags ?? []).join(", ") || "–" },
    { label: "File", cell: (row) => row.file.split("/").at(-1) }, { label: "Offset", num: true, cell: (row) => hexadecimal(row.offset) },
    { label: "", cell: (row) => (row.type === "enqueue" ? button("Replay from here", () => replayForm(ctx, name, row.rid)) : "") },
  ], "The journal has no records.");
  let shown = "messages";
  const views = { messages: [messages, showMessages, "What a restart would deliver"], records: [records, showRecords, "All records, as written"] };
  const choice = h("div", { class: "bar", role: "group", "aria-label": "What is shown" });
  const choose = (view) => {
    shown = view;
    choice.replaceChildren(...Object.entries(views).map(([each, [, , label]]) =>
      h("button", { type: "button", "aria-pressed": each === shown ? "true" : "false", onclick: () => { choose(each); ctx.again(); } }, label)));
    body.replaceChildren(views[shown][0]);
  };
  choose(shown);
  place.append(heading(shownName(name), "A journal on disk, read only", name === "TplStore" ? null : button("Replay", () => replayForm(ctx, name))), choice, body);
  let hasShown = "";
  return async () => {
    if (hasShown === shown) return; // a stored journal does not change
    const view = shown;
    await views[view][1]();
    hasShown = view;
  };
}

function hexOf(begin, encoded, offset) {
  const octets = Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
  const lines = [];
  for (let at = 0; at < octets.length; at += 16) {
    const line = [...octets.slice(at, at + 16)];
    const isAt = offset >= begin + at && offset < begin + at + 16;
    lines.push(`${isAt ? "▶" : " "} ${(begin + at).toString(16).padStart(8, "0")}  ${line.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  ${line.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("")}`);
  }
  return lines.join("\n");
}

function damage(place, ctx) {
  ctx.title("Damage");
  let hasShown = false;
  return async () => {
    if (hasShown) return;
    const [found, note] = await report("check");
    const rows = (found?.damage ?? []).slice(0, MAX_SHOWN);
    hasShown = found !== null;
    place.replaceChildren(heading("Damage", "Each place, with the bytes around it. Recovery keeps them in a quarantine."), note,
      !found ? "" : rows.length ? h("div", {}, rows.map((row) => {
        const shown = h("div");
        return h("div", { class: "card" }, h("h3", {}, row.what), facts([
          ["File", row.file], ["Offset", row.offset === null ? "–" : hexadecimal(row.offset)], ["Record", row.rid === null ? "–" : hexadecimal(row.rid)],
          ["Consequence", row.consequence || "–"], ["Costs", row.loses_nothing ? "nothing" : "something, see the consequence"],
        ]), row.offset === null ? null : h("div", { class: "bar" }, button("Show the bytes", () => attempt(null, async () => {
          const content = await ask(`qstore/stored/bytes?file=${encodeURIComponent(row.file)}&offset=${row.offset}`);
          shown.replaceChildren(h("pre", { tabindex: 0 }, hexOf(content.begin, content.bytes, row.offset)));
        }))), shown);
      })) : h("p", { class: "empty" }, "There is no damage: what a crash leaves behind does not count."));
  };
}

const recoverForm = (ctx) => dialog("Recover into a new store", [
  field("New directory", h("input", { name: "target", required: true, autofocus: true, placeholder: "/var/lib/saved" })),
  field("Branches in doubt", h("select", { name: "decision" }, h("option", { value: "" }, "stay in doubt"), h("option", { value: "commit" }, "are committed"), h("option", { value: "rollback" }, "are rolled back"))),
  h("p", { class: "quiet" }, "The store that is shown is not changed. Start a broker on the new one: qpidd --load-module store --data-dir …"),
], "Recover", async (given) => {
  await ask("qstore/stored/recover", { method: "POST", body: given });
  say("The recovery has begun.");
  ctx.again();
});

const exportForm = (ctx) => dialog("Export to a new file", [
  field("New file: .jsonl, .jsonl.zst, .parquet, .tar.zst or definitions.json", h("input", { name: "target", required: true, autofocus: true, placeholder: "/tmp/orders.jsonl" })),
  field("Only this queue; empty for all", h("input", { name: "queue" })),
  h("p", { class: "quiet" }, "qstore-import brings the file into a store or a broker, qstore-replay puts its messages on a queue again."),
], "Export", async (given) => {
  await ask("qstore/stored/export", { method: "POST", body: given });
  say("The export has begun.");
  ctx.again();
});

const replayForm = (ctx, queue = "", rid = null) => dialog("Replay into a new store", [
  field("New directory", h("input", { name: "target", required: true, autofocus: true, placeholder: "/var/lib/again" })),
  field("Queue", h("input", { name: "queue", required: true, value: queue })),
  field("Put them on this queue; empty for the same name", h("input", { name: "destination" })),
  field("Begin with the record; empty for the first", h("input", { name: "rid", value: rid === null ? "" : hexadecimal(rid), placeholder: "0x4711" })),
  field("How many; empty for all", h("input", { name: "limit", type: "number", min: 1 })),
  check("Only messages that are outstanding, none that were delivered", h("input", { name: "outstanding", type: "checkbox" })),
  h("p", { class: "quiet" }, "Delivered messages are there as long as the journal has not overwritten them. The queue is created with its settings; the store that is shown is not changed. On the command line, qstore-replay puts them on a queue of a running broker."),
], "Replay", async (given) => {
  const begin = given.rid.trim() ? Number(given.rid.trim()) : 0;
  if (!Number.isSafeInteger(begin) || begin < 0) throw new Error("The record is not a number, such as 0x4711.");
  await ask("qstore/stored/replay", { method: "POST", body: { target: given.target, queue: given.queue, destination: given.destination, from_rid: begin, limit: given.limit || 0, outstanding: given.outstanding } });
  say("The replay has begun: see Recovery.");
  ctx.again();
});

function recovery(place, ctx) {
  ctx.title("Recovery");
  return async () => {
    const [[found, note], jobs] = await Promise.all([report("plan"), ask("qstore/stored/jobs")]);
    const [summary] = found?.summary ?? [];
    place.replaceChildren(
      heading("Recovery", "What it would do: nothing was written yet.", button("Replay", () => replayForm(ctx)), button("Export", () => exportForm(ctx)), button("Recover", () => recoverForm(ctx), "main")),
      note,
      summary ? tiles([
        ["Queues", count(summary.queues)], ["Messages", count(summary.messages)], ["In doubt", count(summary.in_doubt)],
        ["Bindings", count(summary.bindings)], ["Lost", count(summary.lost)], ["Quarantined", count(summary.quarantined)],
      ]) : "",
      found ? table("What is recovered", [
        { label: "Queue", cell: (row) => link(`journal/${part(row.name)}`, row.name) }, { label: "Messages", num: true, cell: (row) => count(row.messages) },
        { label: "In doubt", num: true, cell: (row) => count(row.in_doubt) },
        { label: "Torn tail", cell: (row) => (row.torn_tail ? "is cut" : "–") }, { label: "Quarantined", num: true, cell: (row) => count(row.quarantined?.length ?? 0) },
      ], found.queue ?? [], { empty: "There is no queue to recover." }) : "",
      h("h2", {}, "Jobs"), table("Jobs", [
        { label: "What", cell: (row) => row.what },
        { label: "State", cell: (row) => tag(row.state, row.state === "failed" ? "bad" : row.state === "done" ? "fine" : "doubtful") },
        { label: "Result", cell: (row) => row.error || (row.summary ? `${plural(row.summary.messages ?? 0, "message")}${row.summary.kind === "summary" ? `, ${count(row.summary.lost ?? 0)} lost` : ""}` : "–") },
      ], jobs));
  };
}

export const STORED_PAGES = { "": overview, journal, damage, recovery };
