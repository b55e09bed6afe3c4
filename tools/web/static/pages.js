// The pages. Each puts its elements into `place` and returns what reads and shows its contents (see console.js).

import {
  argumentsText, ask, attempt, bytes, check, count, dialog, duration, facts, field, growth, h, level, link, meter, moment,
  objectOf, part, plot, plural, ranges, rate, s, say, table, tag, tiles, values,
} from "/kit.js";

const PAGE_SIZE = 50;
const SEARCH_MILLISECONDS = 250;

const queueLink = (vhost, name) => link(`queue/${part(vhost, name)}`, name || "(no name)");
const exchangeLink = (vhost, name) => link(`exchange/${part(vhost, name || "amq.default")}`, name || "(default)");
const connectionLink = (name) => link(`connection/${part(name)}`, name);
const heading = (text, sub, ...actions) => h("div", { class: "head" },
  h("div", {}, h("h1", {}, text), h("p", { class: "sub" }, sub)), actions.length ? h("div", { class: "bar" }, actions) : null);
const button = (label, onclick, kind = null) => h("button", { type: "button", onclick, class: kind }, label);
const of = (row, name) => row.message_stats?.[`${name}_details`]?.rate ?? 0;

function features(row) {
  const found = [];
  if (row.type === "quorum" || row.type === "stream") found.push(tag(row.type));
  if (row.durable) found.push(tag("durable"));
  if (row.auto_delete) found.push(tag("auto-delete"));
  if (row.exclusive) found.push(tag("exclusive"));
  if (row.internal) found.push(tag("internal"));
  if (row.policy) found.push(tag(`policy ${row.policy}`));
  if (row.state === "flow") found.push(tag("publishers wait", "doubtful"));
  return found;
}

/** Plots of depth and rates, with the choice of how far back they go. Returns [element, refresh]. */
function plots(series, vhost) {
  let age = 3600;
  const place = h("div", { class: "pair" });
  const show = async () => {
    const history = await ask(`qstore/history?age=${age}${series ? `&queue=${encodeURIComponent(series)}&vhost=${encodeURIComponent(vhost)}` : ""}`);
    place.replaceChildren(
      plot("Messages", [
        { label: "ready", points: level(history, "messages_ready") },
        { label: "unacknowledged", points: level(history, "messages_unacknowledged") },
      ], age, count),
      plot("Messages per second", [
        { label: "publish", points: growth(history, "publish") },
        { label: "deliver", points: growth(history, "deliver") },
        { label: "acknowledge", points: growth(history, "ack") },
      ], age, rate),
    );
  };
  const choice = ranges(age, (chosen) => {
    age = chosen;
    attempt(null, show);
  });
  return [h("div", {}, choice, place), show];
}

/**
 * A list that the server pages, sorts and filters. Returns [element, refresh]; the state is in the address, so that it
 * can be sent to somebody.
 */
function list(ctx, path, caption, columns, { empty, size = PAGE_SIZE }) {
  const wanted = { page: +(ctx.query.get("page") ?? 1), name: ctx.query.get("name") ?? "", sort: ctx.query.get("sort") ?? "", reverse: ctx.query.get("reverse") === "true" };
  const place = h("div");
  const remember = () => {
    const query = new URLSearchParams(Object.entries({ page: wanted.page > 1 ? wanted.page : "", name: wanted.name, sort: wanted.sort, reverse: wanted.reverse || "" }).filter(([, value]) => value !== ""));
    const base = location.hash.split("?")[0] || "#/";
    window.history.replaceState(null, "", query.size ? `${base}?${query}` : base);
  };
  const show = async () => {
    const query = new URLSearchParams({ page: wanted.page, page_size: size, name: wanted.name });
    if (wanted.sort) {
      query.set("sort", wanted.sort);
      query.set("sort_reverse", wanted.reverse);
    }
    let found = await ask(`${path}?${query}`);
    if (Array.isArray(found)) found = { items: found, filtered_count: found.length, total_count: found.length, page: 1, page_count: 1 };
    const go = (page) => () => {
      wanted.page = page;
      remember();
      attempt(null, show);
    };
    const sort = {
      key: wanted.sort,
      reverse: wanted.reverse,
      by: (key) => {
        wanted.reverse = wanted.sort === key ? !wanted.reverse : columns.find((column) => column.key === key).num === true;
        wanted.sort = key;
        go(1)();
      },
    };
    const text = wanted.name ? `Nothing matches “${wanted.name}”.` : empty;
    const held = document.activeElement?.closest?.("th button")?.textContent;
    place.replaceChildren(
      table(caption, columns, found.items, { empty: text, sort }),
      found.page_count > 1
        ? h("div", { class: "pages" },
          h("button", { type: "button", disabled: found.page <= 1, onclick: go(found.page - 1) }, "Previous"),
          `Page ${count(found.page)} of ${count(found.page_count)}: ${count(found.filtered_count)} of ${count(found.total_count)}`,
          h("button", { type: "button", disabled: found.page >= found.page_count, onclick: go(found.page + 1) }, "Next"))
        : null ?? "",
    );
    if (held) [...place.querySelectorAll("th button")].find((each) => each.textContent === held)?.focus();
  };
  let timer = 0;
  const search = h("input", {
    type: "search", class: "search", placeholder: "Filter by name", "aria-label": "Filter by name", value: wanted.name,
    oninput: (event) => {
      clearTimeout(timer);
      wanted.name = event.target.value;
      wanted.page = 1;
      timer = setTimeout(() => {
        remember();
        attempt(null, show);
      }, SEARCH_MILLISECONDS);
    },
  });
  return [h("div", {}, h("div", { class: "bar" }, search), place), show];
}

/**
 * A part of a page that may take long, such as all bindings where there are very many: the page does not wait for it.
 * `work()` reads what `show(found)` shows in `place`. Returns a function that begins it, or again after what is under way.
 */
function slowPart(place, text, work, show) {
  let isUnderWay = false;
  let isWanted = false;
  place.append(h("p", { class: "empty" }, text));
  const begin = async () => {
    if (isUnderWay) {
      isWanted = true; // what is under way may not have seen what was done
      return;
    }
    isUnderWay = true;
    isWanted = false;
    place.setAttribute("aria-busy", "true");
    try {
      const found = await work();
      if (place.isConnected) show(found);
    } catch (error) {
      if (place.isConnected) place.replaceChildren(h("p", { class: "note" }, error.message));
    } finally {
      place.removeAttribute("aria-busy");
      isUnderWay = false;
    }
    if (isWanted && place.isConnected) await begin();
  };
  return begin;
}

// ---- overview ----

const MAX_NOTES = 6;

/** An alarm or a warning, as a line. */
function alarmNote(each) {
  const about = each.queue ? [queueLink(each.vhost, each.queue), ": "] : [];
  const more = each.resource === "quarantine" ? [" ", link("store", "Look at it")] : [];
  return h("p", { class: each.level === "alarm" ? "note serious" : "note" }, each.level === "alarm" ? h("b", {}, "Alarm. ") : null, about, each.text, more);
}

function overview(place, ctx) {
  ctx.title("Overview");
  const [drawn, draw] = plots("", "");
  const top = h("div");
  const notes = h("div");
  const rest = h("div", { class: "pair" });
  place.append(top, notes, drawn, h("h2", {}, "Broker"), rest);
  return async () => {
    const [row, nodes, store, journals, wrong, waiting] = await Promise.all([
      ask("overview"), ask("nodes").catch(() => []), ask("qstore/store").catch(() => null),
      ask("qstore/journals?page=1&page_size=5&sort=fill&sort_reverse=true").catch(() => ({ items: [], total_count: 0 })), ask("qstore/alarms").catch(() => ({ alarms: [] })),
      ask("queues?page=1&page_size=5&sort=messages&sort_reverse=true&columns=name,vhost,messages,consumers,state"),
      draw(),
    ]);
    const node = nodes[0] ?? {};
    const totals = row.object_totals;
    top.replaceChildren(
      heading(row.node, `${row.product_name} ${row.product_version}, up ${duration((node.uptime ?? 0) / 1000)}`),
      tiles([
        ["Messages", count(row.queue_totals.messages), `${count(row.queue_totals.messages_unacknowledged)} unacknowledged`],
        ["Publish", rate(of(row, "publish"))], ["Deliver", rate(of(row, "deliver_get"))], ["Acknowledge", rate(of(row, "ack"))],
        ["Queues", link("queues", count(totals.queues))], ["Exchanges", link("exchanges", count(totals.exchanges))],
        ["Connections", link("connections", count(totals.connections))], ["Consumers", link("channels", count(totals.consumers))],
        ["Memory", bytes(node.mem_used)], ["Disk free", bytes(node.disk_free)],
      ], "two-rows"));
    notes.replaceChildren(
      ...wrong.alarms.slice(0, MAX_NOTES).map(alarmNote),
      wrong.alarms.length > MAX_NOTES ? h("p", { class: "note" }, link("alarms", `All ${count(wrong.alarms.length)} alarms and warnings`)) : "");
    const shown = waiting.items.filter((each) => each.messages);
    rest.replaceChildren(...[
      h("div", {}, h("h3", {}, "Where most messages wait"), table("Queues with the most messages", [
        { label: "Queue", cell: (each) => queueLink(each.vhost, each.name) },
        { label: "Messages", num: true, cell: (each) => count(each.messages) },
        { label: "Consumers", num: true, cell: (each) => count(each.consumers) },
      ], shown, { empty: "No message waits." })),
      store && h("div", { class: "card" }, h("h3", {}, "Store"), Object.keys(store).length
        ? facts([
          ["Directory", store.location ?? node.db_dir ?? "–"],
          ["Journals", link("store", count(journals.total_count))],
          ["Open transactions", count(store.tplTransactionDepth)],
          ["Process", node.os_pid ? `${node.os_pid}, ${count(node.fd_used)} of ${count(node.fd_total)} descriptors` : "on another machine"],
          ["Listens on", row.listeners.map((each) => `${each.protocol} ${each.ip_address}:${each.port}`).join(", ")],
        ])
        : h("p", { class: "quiet" }, "No store is loaded: messages are lost when the broker ends. Start it with --load-module store.")),
    ].filter(Boolean));
  };
}

// ---- queues ----

function queues(place, ctx) {
  ctx.title("Queues");
  const [listed, show] = list(ctx, "queues", "Queues", [
    { label: "Name", key: "name", cell: (row) => queueLink(row.vhost, row.name) },
    { label: "Host", key: "vhost", cell: (row) => row.vhost },
    { label: "Features", cell: features },
    { label: "Ready", key: "messages_ready", num: true, cell: (row) => count(row.messages_ready) },
    { label: "Unacknowledged", key: "messages_unacknowledged", num: true, cell: (row) => count(row.messages_unacknowledged) },
    { label: "Size", key: "message_bytes", num: true, cell: (row) => bytes(row.message_bytes) },
    { label: "Publish", key: "message_stats.publish_details.rate", num: true, cell: (row) => rate(of(row, "publish")) },
    { label: "Deliver", key: "message_stats.deliver_get_details.rate", num: true, cell: (row) => rate(of(row, "deliver_get")) },
    { label: "Consumers", key: "consumers", num: true, cell: (row) => count(row.consumers) },
  ], { empty: "There are no queues yet. Declare one here, or let an application do it." });
  place.append(heading("Queues", "What waits, and who takes it.", button("Declare a queue", () => declareQueue(ctx), "main")), listed);
  return show;
}

const vhostField = () => field("Virtual host", h("input", { name: "vhost", value: "/", required: true }));

const declareQueue = (ctx) => dialog("Declare a queue", [
  field("Name", h("input", { name: "name", required: true, autofocus: true })), vhostField(),
  check("Durable: it and its persistent messages survive a restart", h("input", { type: "checkbox", name: "durable", checked: true })),
  check("Auto-delete: it goes with its last consumer", h("input", { type: "checkbox", name: "auto_delete" })),
  field("Arguments, as JSON", h("textarea", { name: "arguments", placeholder: '{"x-max-length": 1000}' })),
], "Declare", async (given) => {
  await ask(`queues/${part(given.vhost, given.name)}`, { method: "PUT", body: { durable: given.durable, auto_delete: given.auto_delete, arguments: objectOf(given.arguments) } });
  say(`Queue ${given.name} is declared.`);
  ctx.again();
});

function messageBlock(message) {
  const pairs = [
    ["Properties", argumentsText(message.properties) || "–"], ["Headers", argumentsText(message.headers) || "–"],
    ["Size", `${bytes(message.payload_bytes)}${message.is_cut ? ", the beginning is shown" : ""}${message.payload_encoding === "base64" ? ", as base64" : ""}`],
  ];
  return h("div", { class: "message" }, h("div", {}, message.durable ? tag("persistent") : null, message.redelivered ? tag("redelivered", "doubtful") : null),
    facts(pairs), h("pre", { tabindex: 0 }, message.payload || "(empty)"));
}

function journalDrawing(journal) {
  const used = journal.files - journal.free_files;
  const columns = Math.min(journal.files, 32);
  const lines = Math.ceil(journal.files / columns);
  const drawing = s("svg", { class: "graph journal", viewBox: `0 0 ${columns * 20} ${lines * 20}`, role: "img", "aria-label": `${used} of ${journal.files} files of the journal are in use` });
  drawing.style.maxWidth = `${columns * 28}px`;
  for (let index = 0; index < journal.files; index += 1) {
    const file = journal.ring?.[index];
    const isHeld = file ? index < journal.ring_used : index < used;
    const kind = !isHeld ? null : file && !file.live ? "dead" : file && index === 0 && journal.oldest?.file === file.file ? "used oldest" : "used";
    const text = file ? `File ${file.file}: ${isHeld ? `${count(file.live)} live records${index === journal.ring_used - 1 ? ", being written" : ""}` : "free"}` : "";
    drawing.append(s("rect", { class: kind, x: (index % columns) * 20 + 1, y: Math.floor(index / columns) * 20 + 1, width: 18, height: 18, rx: 3 }, s("title", {}, text)));
  }
  return drawing;
}

const HELD_BY = {
  message: "A message", transaction: "A message of an open transaction", snapshot: "A backup that is being made",
  unsynced: "A removal that is not on the disk yet", "": "Nothing: the next file may be entered",
};
const MESSAGE_STATES = { waiting: ", which waits to be delivered", delivered: ", which was delivered and is not acknowledged", unknown: "" };

function journalCard(journal) {
  return h("div", { class: "card" }, h("h3", {}, "Journal"), journalDrawing(journal), facts([
    ["In use", `${journal.files - journal.free_files} of ${journal.files} files of ${bytes(journal.file_size)}: ${Math.round(journal.fill * 100)} %`],
    ["Live records", count(journal.records)],
    ...(journal.ring ? [
      ["Oldest live record", journal.oldest ? `0x${journal.oldest.rid.toString(16)} in file ${journal.oldest.file} at 0x${journal.oldest.offset.toString(16)}` : "–"],
      ["Keeps the oldest file", `${HELD_BY[journal.held_by] ?? journal.held_by}${MESSAGE_STATES[journal.message_state] ?? ""}`],
    ] : []),
    ["Written", `${plural(journal.enqueues, "enqueue")}, ${plural(journal.dequeues, "dequeue")}`],
    ["Open transactions", count(journal.open_transactions)],
    ["Directory", journal.directory],
  ]));
}

function queue(place, ctx, vhost, name) {
  ctx.title(name);
  const path = `queues/${part(vhost, name)}`;
  const own = `qstore/${path}`;
  const [drawn, draw] = plots(name, vhost);
  const top = h("div");
  const lower = h("div");
  const bound = h("div");
  const found = h("div");
  const publishForm = h("form", {},
    h("div", { class: "fields" },
      field("Content type", h("input", { name: "content_type", value: "text/plain" })),
      field("Headers, as JSON", h("input", { name: "headers", placeholder: '{"kind": "test"}' }))),
    field("Message", h("textarea", { name: "payload" })),
    check("Persistent", h("input", { type: "checkbox", name: "persistent", checked: true })),
    h("button", { type: "submit", class: "main" }, "Publish"));
  publishForm.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt("The message was published.", async () => {
      const given = values(publishForm);
      const properties = { delivery_mode: given.persistent ? 2 : 1, headers: objectOf(given.headers) };
      if (given.content_type) properties.content_type = given.content_type;
      await ask(`exchanges/${part(vhost, "amq.default")}/publish`, { method: "POST", body: { routing_key: name, properties, payload: given.payload, payload_encoding: "string" } });
      ctx.again();
    });
  });
  const amount = h("input", { name: "count", type: "number", min: 1, max: 1000, value: 10, "aria-label": "How many" });
  amount.style.width = "90px";
  const look = () => attempt(null, async () => {
    const messages = await ask(`${own}/browse?count=${encodeURIComponent(amount.value)}`);
    found.replaceChildren(...(messages.length ? messages.map(messageBlock) : [h("p", { class: "empty" }, "No message can be delivered now.")]));
  });
  place.append(top, drawn, h("h2", {}, "Details"), lower, h("h2", {}, "Bindings"), bound,
    h("details", { class: "card" }, h("summary", {}, "Messages"),
      h("p", { class: "quiet" }, "They are looked at, and stay on the queue as they are."),
      h("div", { class: "bar" }, amount, button("Browse", look)), found),
    h("details", { class: "card" }, h("summary", {}, "Publish a message"), publishForm));
  const read = slowPart(bound, "The bindings are being read.", () => ask(`${path}/bindings`), (bindings) => bound.replaceChildren(table("Bindings", [
    { label: "Exchange", cell: (each) => exchangeLink(each.vhost, each.source) },
    { label: "Key", cell: (each) => each.routing_key || "–" },
    { label: "Arguments", cell: (each) => argumentsText(each.arguments) || "–" },
    { label: "", cell: (each) => unbindButton(ctx, each) },
  ], bindings, { empty: "No exchange is bound to it, but the default one." })));
  return async () => {
    const [row, journal] = await Promise.all([
      ask(path), ask(`qstore/journals/${part(name)}?vhost=${encodeURIComponent(vhost)}`).catch(() => null), draw(),
    ]);
    const stats = row.message_stats ?? {};
    top.replaceChildren(
      heading(name || "(no name)", [`Queue in ${vhost} `, features(row)],
        button("Move messages", () => moveMessages(ctx, own, name, row.messages)),
        button("Purge", () => purge(ctx, path, name, row.messages), "danger"),
        button("Delete", () => removeQueue(path, name, row), "danger")),
      tiles([
        ["Ready", count(row.messages_ready)], ["Unacknowledged", count(row.messages_unacknowledged)],
        ["Size", bytes(row.message_bytes), row.messages_paged_out ? `${count(row.messages_paged_out)} not in memory` : null],
        ["Publish", rate(of(row, "publish")), `${count(stats.publish)} in all`],
        ["Deliver", rate(of(row, "deliver_get")), `${count(stats.deliver_get)} in all`],
        ["Acknowledge", rate(of(row, "ack")), `${count(stats.ack)} in all`], ["Consumers", count(row.consumers)],
      ]));
    lower.replaceChildren(
      h("div", { class: "pair" },
        h("div", { class: "card" }, h("h3", {}, "Settings"), facts([
          ["Arguments", argumentsText(row.arguments) || "–"], ["Policy", row.policy || "–"],
          ["Operator policy", row.operator_policy || "–"], ["Alternate exchange", row.alternate_exchange || "–"],
          ["Created by", row.user_who_performed_action || "–"],
          ["Discarded", argumentsText(Object.fromEntries(Object.entries(row.discarded ?? {}).filter(([, value]) => value))) || "–"],
        ])),
        journal ? journalCard(journal) : null),
      h("h2", {}, "Consumers"), table("Consumers", [
        { label: "Tag", cell: (each) => each.consumer_tag },
        { label: "Connection", cell: (each) => connectionLink(each.channel_details.connection_name) },
        { label: "User", cell: (each) => each.channel_details.user },
        { label: "Acknowledges", cell: (each) => (each.ack_required ? "yes" : "no") },
        { label: "Prefetch", num: true, cell: prefetchOf },
        { label: "Exclusive", cell: (each) => (each.exclusive ? "yes" : "no") },
        { label: "", cell: (each) => closeConsumer(ctx, each) },
      ], row.consumer_details ?? [], { empty: "Nobody consumes this queue." }));
    read();
  };
}

function unbindButton(ctx, row) {
  if (!row.source) return "";
  const kind = row.destination_type === "queue" ? "q" : "e";
  const path = `bindings/${part(row.vhost)}/e/${part(row.source)}/${kind}/${part(row.destination, row.properties_key)}`;
  return button("Unbind", () => dialog("Remove this binding?", [
    h("p", {}, `${row.source} no longer sends messages with the key “${row.routing_key}” to ${row.destination}.`),
  ], "Unbind", async () => {
    await ask(path, { method: "DELETE" });
    ctx.again();
  }, { danger: true }));
}

const moveMessages = (ctx, own, name, messages) => dialog(`Move messages from ${name}`, [
  field("To the queue", h("input", { name: "destination", required: true, autofocus: true })),
  field("How many; 0 for all", h("input", { name: "count", type: "number", min: 0, value: 0 })),
  h("p", { class: "quiet" }, `${plural(messages, "message is", "messages are")} here. Each is stored there before it is removed here.`),
], "Move", async (given) => {
  await ask(`${own}/move`, { method: "POST", body: { destination: given.destination, count: +given.count } });
  say("The messages were moved.");
  ctx.again();
});

const purge = (ctx, path, name, messages) => dialog(`Purge ${name}?`, [
  h("p", {}, `${plural(messages, "message is", "messages are")} deleted for good. Unacknowledged ones stay.`),
], "Delete the messages", async () => {
  await ask(`${path}/contents`, { method: "DELETE" });
  say(`${name} was purged.`);
  ctx.again();
}, { danger: true });

const removeQueue = async (path, name, row) => {
  const isDone = await dialog(`Delete ${name}?`, [
    h("p", {}, `${plural(row.messages, "message is", "messages are")} deleted with it, and ${plural(row.consumers, "consumer is", "consumers are")} cancelled.`),
    check("Only if it is empty", h("input", { type: "checkbox", name: "empty" })),
    check("Only if it has no consumers", h("input", { type: "checkbox", name: "unused" })),
  ], "Delete the queue", (given) => ask(`${path}?if-empty=${given.empty}&if-unused=${given.unused}`, { method: "DELETE" }), { danger: true });
  if (isDone) {
    say(`${name} was deleted.`);
    location.hash = "#/queues";
  }
};

// ---- exchanges ----

function exchanges(place, ctx) {
  ctx.title("Exchanges");
  const [listed, show] = list(ctx, "exchanges", "Exchanges", [
    { label: "Name", key: "name", cell: (row) => exchangeLink(row.vhost, row.name) },
    { label: "Host", key: "vhost", cell: (row) => row.vhost },
    { label: "Type", key: "type", cell: (row) => row.type },
    { label: "Features", cell: features },
    { label: "In", key: "message_stats.publish_in_details.rate", num: true, cell: (row) => rate(of(row, "publish_in")) },
    { label: "Out", key: "message_stats.publish_out_details.rate", num: true, cell: (row) => rate(of(row, "publish_out")) },
  ], { empty: "There are no exchanges." });
  const drawing = h("div", { class: "card" });
  place.append(heading("Exchanges", "Where messages are published, and where they go.",
    button("Declare an exchange", () => declareExchange(ctx), "main")), listed, h("h2", {}, "Bindings"), drawing);
  const draw = slowPart(drawing, "The bindings are being read.", () => ask("bindings?page=1&page_size=500&sort=source&sort_reverse=true"),
    ({ items, page_count: pages }) => drawing.replaceChildren(graph(items.filter((row) => row.source), pages > 1 && items.at(-1).source !== "")));
  return async () => {
    await show();
    draw();
  };
}

const declareExchange = (ctx) => dialog("Declare an exchange", [
  field("Name", h("input", { name: "name", required: true, autofocus: true })), vhostField(),
  field("Type", h("select", { name: "type" }, ["direct", "topic", "fanout", "headers", "xml", "x-consistent-hash", "x-delayed-message", "x-modulus-hash", "x-random", "x-local-random", "x-recent-history"].map((kind) => h("option", {}, kind)))),
  check("Durable", h("input", { type: "checkbox", name: "durable", checked: true })),
  check("Auto-delete: it goes with its last binding", h("input", { type: "checkbox", name: "auto_delete" })),
  field("Arguments, as JSON", h("textarea", { name: "arguments", placeholder: '{"alternate-exchange": "unrouted"}' })),
], "Declare", async (given) => {
  await ask(`exchanges/${part(given.vhost, given.name)}`, { method: "PUT", body: { type: given.type, durable: given.durable, auto_delete: given.auto_delete, arguments: objectOf(given.arguments) } });
  say(`Exchange ${given.name} is declared.`);
  ctx.again();
});

const MAX_NODES = 60;
const LABEL_LENGTH = 40;

/** Exchanges on the left, what is bound to them on the right; `isCut` if there are more bindings. */
function graph(bindings, isCut) {
  if (!bindings.length) return h("p", { class: "empty" }, "Nothing is bound to an exchange, but to the default one.");
  const edges = new Map();
  for (const row of bindings) {
    const key = JSON.stringify([row.vhost, row.source, row.destination_type, row.destination]);
    edges.set(key, [...(edges.get(key) ?? []), row]);
  }
  const sources = new Map();
  const targets = new Map();
  const drawn = [];
  for (const rows of edges.values()) {
    const row = rows[0];
    const [from, to] = [JSON.stringify([row.vhost, row.source]), JSON.stringify([row.vhost, row.destination_type, row.destination])];
    if (!targets.has(to) && targets.size >= MAX_NODES) continue;
    if (!sources.has(from)) sources.set(from, { index: sources.size, name: row.source, vhost: row.vhost });
    if (!targets.has(to)) targets.set(to, { index: targets.size, name: row.destination, vhost: row.vhost, kind: row.destination_type });
    drawn.push([from, to, rows]);
  }
  const [line, width, box] = [30, 820, 300];
  const height = Math.max(sources.size, targets.size) * line;
  const middle = (index, size) => (index + 0.5) * (height / size);
  const drawing = s("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Exchanges and what is bound to them" });
  drawing.style.maxWidth = `${width * 1.2}px`;
  for (const [from, to, rows] of drawn) {
    const [y1, y2] = [middle(sources.get(from).index, sources.size), middle(targets.get(to).index, targets.size)];
    const keys = rows.map((row) => row.routing_key || argumentsText(row.arguments) || "(no key)");
    drawing.append(s("path", { class: "edge", d: `M${box} ${y1}C${width / 2} ${y1} ${width / 2} ${y2} ${width - box} ${y2}` },
      s("title", {}, `${rows[0].source} → ${rows[0].destination}: ${keys.slice(0, 20).join(", ")}${keys.length > 20 ? ` and ${keys.length - 20} more` : ""}`)));
  }
  const node = (x, y, each, kind, href, text = each.vhost === "/" ? each.name : `${each.vhost}: ${each.name}`) => s("a", { href, class: kind }, s("title", {}, text),
    s("rect", { x, y: y - 11, width: box, height: 22, rx: 5 }), s("text", { x: x + 10, y: y + 4 }, text.length > LABEL_LENGTH ? `${text.slice(0, LABEL_LENGTH - 1)}…` : text));
  for (const each of sources.values()) drawing.append(node(0, middle(each.index, sources.size), each, "exchange", `#/exchange/${part(each.vhost, each.name)}`));
  for (const each of targets.values()) {
    drawing.append(node(width - box, middle(each.index, targets.size), each, each.kind, `#/${each.kind}/${part(each.vhost, each.name)}`));
  }
  const shown = drawn.reduce((sum, [, , rows]) => sum + rows.length, 0);
  return h("div", {}, drawing, isCut || shown < bindings.length ? h("p", { class: "quiet" }, `The first ${plural(shown, "binding is", "bindings are")} drawn; the page of an exchange lists all of its own.`) : null);
}

function exchange(place, ctx, vhost, name) {
  const label = name === "amq.default" ? "(default)" : name;
  ctx.title(label);
  const path = `exchanges/${part(vhost, name)}`;
  const top = h("div");
  const lower = h("div");
  const bound = h("span", {}, "…");
  const bind = h("form", {},
    h("div", { class: "fields" },
      field("To", h("select", { name: "kind" }, h("option", { value: "q" }, "queue"), h("option", { value: "e" }, "exchange"))),
      field("Name", h("input", { name: "destination", required: true })), field("Key", h("input", { name: "key" })),
      field("Arguments, as JSON", h("input", { name: "arguments" }))),
    h("button", { type: "submit", class: "main" }, "Bind"));
  bind.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt("The binding was added.", async () => {
      const given = values(bind);
      await ask(`bindings/${part(vhost)}/e/${part(name)}/${given.kind}/${part(given.destination)}`, { method: "POST", body: { routing_key: given.key, arguments: objectOf(given.arguments) } });
      ctx.again();
    });
  });
  const send = h("form", {},
    h("div", { class: "fields" }, field("Key", h("input", { name: "key" })), field("Headers, as JSON", h("input", { name: "headers" }))),
    field("Message", h("textarea", { name: "payload" })),
    check("Persistent", h("input", { type: "checkbox", name: "persistent", checked: true })),
    h("button", { type: "submit", class: "main" }, "Publish"));
  send.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(null, async () => {
      const given = values(send);
      const answer = await ask(`${path}/publish`, { method: "POST", body: { routing_key: given.key, properties: { delivery_mode: given.persistent ? 2 : 1, headers: objectOf(given.headers) }, payload: given.payload, payload_encoding: "string" } });
      say(answer.routed ? "The message was published." : "No queue takes this message: it was dropped.");
      ctx.again();
    });
  });
  place.append(top, lower,
    name === "amq.default" ? "" : h("details", { class: "card" }, h("summary", {}, "Bind something to it"), bind),
    h("details", { class: "card" }, h("summary", {}, "Publish a message"), send));
  const read = slowPart(lower, "The bindings are being read.",
    () => Promise.all([ask(`${path}/bindings/source?page=1&page_size=200`), ask(`${path}/bindings/destination`)]), ([from, to]) => {
      bound.textContent = count(from.filtered_count);
      lower.replaceChildren(
        h("h2", {}, "Bindings from it"), table("Bindings from this exchange", [
          { label: "To", cell: (each) => (each.destination_type === "queue" ? queueLink(each.vhost, each.destination) : exchangeLink(each.vhost, each.destination)) },
          { label: "Kind", cell: (each) => each.destination_type },
          { label: "Key", cell: (each) => each.routing_key || "–" },
          { label: "Arguments", cell: (each) => argumentsText(each.arguments) || "–" },
          { label: "", cell: (each) => unbindButton(ctx, each) },
        ], from.items, { empty: "Nothing is bound to it: its messages are dropped." }),
        from.filtered_count > from.items.length ? h("p", { class: "quiet" }, `The first ${count(from.items.length)} of ${count(from.filtered_count)}.`) : "",
        ...(to.length ? [h("h2", {}, "Bindings to it"), table("Bindings to this exchange", [
          { label: "From", cell: (each) => exchangeLink(each.vhost, each.source) }, { label: "Key", cell: (each) => each.routing_key || "–" },
          { label: "", cell: (each) => unbindButton(ctx, each) },
        ], to)] : []));
    });
  return async () => {
    const row = await ask(path);
    const stats = row.message_stats ?? {};
    const isStandard = !row.name || row.name.startsWith("amq.");
    top.replaceChildren(
      heading(label, [`Exchange of type ${row.type} in ${vhost} `, features(row)],
        ...(isStandard ? [] : [button("Delete", () => removeExchange(path, name), "danger")])),
      tiles([
        ["In", rate(of(row, "publish_in")), `${count(stats.publish_in ?? 0)} in all`],
        ["Out", rate(of(row, "publish_out")), `${count(stats.publish_out ?? 0)} in all`],
        ["Bindings", bound],
      ]),
      Object.keys(row.arguments).length ? h("p", {}, `Arguments: ${argumentsText(row.arguments)}`) : "");
    read();
  };
}

const removeExchange = async (path, name) => {
  if (await dialog(`Delete ${name}?`, [h("p", {}, "All bindings from and to it are removed, too.")], "Delete the exchange", () => ask(path, { method: "DELETE" }), { danger: true })) {
    say(`${name} was deleted.`);
    location.hash = "#/exchanges";
  }
};

// ---- connections and channels ----

function connections(place, ctx) {
  ctx.title("Connections");
  const [listed, show] = list(ctx, "connections", "Connections", [
    { label: "Name", key: "name", cell: (row) => [connectionLink(row.name), row.user_provided_name ? h("div", { class: "quiet" }, row.user_provided_name) : null] },
    { label: "User", key: "user", cell: (row) => row.user }, { label: "Host", key: "vhost", cell: (row) => row.vhost },
    { label: "Protocol", key: "protocol", cell: (row) => [row.protocol, " ", row.ssl ? tag("TLS", "fine") : null] },
    { label: "Client", cell: (row) => row.client_properties.product ?? row.client_properties["qpid.client_process"] ?? "–" },
    { label: "Channels", key: "channels", num: true, cell: (row) => count(row.channels) },
    { label: "From client", key: "recv_oct_details.rate", num: true, cell: (row) => `${bytes(row.recv_oct_details.rate)}/s` },
    { label: "To client", key: "send_oct_details.rate", num: true, cell: (row) => `${bytes(row.send_oct_details.rate)}/s` },
  ], { empty: "No application is connected." });
  place.append(heading("Connections", "Who is connected; consoles are not listed."), listed);
  return show;
}

/** The prefetch of a consumer: null if it has just ended. */
const prefetchOf = (row) => (row.prefetch_count === 0 ? "no limit" : count(row.prefetch_count));

const closeConsumer = (ctx, row) => button("Close", () => dialog(`Close the consumer ${row.consumer_tag}?`, [
  h("p", {}, `It gets no more messages of ${row.queue.name}. A session of AMQP 0-10 ends with it, since the protocol has no other way to tell the client.`),
], "Close it", async () => {
  await ask(`qstore/subscriptions/${part(row.subscription)}`, { method: "DELETE" });
  say("The consumer was closed.");
  ctx.again();
}, { danger: true }));

const channelColumns = [
  { label: "Channel", key: "name", cell: (row) => row.name }, { label: "User", key: "user", cell: (row) => row.user },
  { label: "Host", key: "vhost", cell: (row) => row.vhost },
  { label: "State", key: "state", cell: (row) => row.state },
  { label: "Transactional", cell: (row) => (row.transactional ? "yes" : "no") },
  { label: "Consumers", key: "consumer_count", num: true, cell: (row) => count(row.consumer_count) },
  { label: "Unacknowledged", key: "messages_unacknowledged", num: true, cell: (row) => count(row.messages_unacknowledged) },
];

function connection(place, ctx, name) {
  ctx.title(name);
  const top = h("div");
  const lower = h("div");
  place.append(top, lower);
  return async () => {
    const [row, channels] = await Promise.all([ask(`connections/${part(name)}`), ask(`connections/${part(name)}/channels`)]);
    top.replaceChildren(
      heading(row.name, `${row.protocol}, user ${row.user}`, button("Close it", async () => {
        if (await dialog("Close this connection?", [h("p", {}, "Its unacknowledged messages return to their queues. Most clients connect again.")], "Close it", () => ask(`connections/${part(name)}`, { method: "DELETE" }), { danger: true })) {
          say("The connection was closed.");
          location.hash = "#/connections";
        }
      }, "danger")),
      tiles([
        ["From client", bytes(row.recv_oct), plural(row.messages_received, "message")],
        ["To client", bytes(row.send_oct), plural(row.messages_sent, "message")],
        ["Channels", count(row.channels)], ["Connected", duration(Math.max(0, Date.now() - row.connected_at) / 1000), moment(row.connected_at)],
      ]));
    lower.replaceChildren(
      h("div", { class: "card" }, h("h3", {}, "Client"), facts([
        ["Virtual host", row.vhost], ["Authentication", row.auth_mechanism || "–"], ["TLS", row.ssl ? [row.ssl_protocol || "yes", row.ssl_cipher].filter(Boolean).join(", ") : "no"],
        ...Object.entries(row.client_properties).slice(0, 40).map(([key, value]) => [key, typeof value === "object" ? JSON.stringify(value) : String(value)]),
      ])),
      h("h2", {}, "Channels"), table("Channels", channelColumns, channels, { empty: "It has no channels." }));
  };
}

function channels(place, ctx) {
  ctx.title("Channels");
  const [listed, show] = list(ctx, "channels", "Channels", channelColumns, { empty: "No channel is open." });
  const consumers = h("div");
  place.append(heading("Channels and consumers", "Channels of AMQP 0-9-1, and sessions of AMQP 0-10 and 1.0."), listed, h("h2", {}, "Consumers"), consumers);
  return async () => {
    const [found] = await Promise.all([ask("consumers?page=1&page_size=200"), show()]);
    const items = Array.isArray(found) ? found.slice(0, 200) : found.items;
    consumers.replaceChildren(table("Consumers", [
      { label: "Queue", cell: (row) => queueLink(row.queue.vhost, row.queue.name) }, { label: "Tag", cell: (row) => row.consumer_tag },
      { label: "Connection", cell: (row) => connectionLink(row.channel_details.connection_name) },
      { label: "Acknowledges", cell: (row) => (row.ack_required ? "yes" : "no") },
      { label: "Prefetch", num: true, cell: prefetchOf },
      { label: "", cell: (row) => closeConsumer(ctx, row) },
    ], items, { empty: "Nobody consumes." }));
  };
}

// ---- store and transactions ----

function store(place, ctx) {
  ctx.title("Store");
  const [listed, show] = list(ctx, "qstore/journals", "Journals", [
    { label: "Queue", key: "name", cell: (row) => queueLink(row.vhost || "/", row.name) },
    { label: "Fill", key: "fill", cell: (row) => [meter(row.fill, `${Math.round(row.fill * 100)} % in use`), h("span", { class: "quiet" }, `${Math.round(row.fill * 100)} %`)] },
    { label: "Files", key: "files", num: true, cell: (row) => `${count(row.files - row.free_files)} of ${count(row.files)}` },
    { label: "Capacity", key: "capacity", num: true, cell: (row) => bytes(row.capacity) },
    { label: "Live records", key: "records", num: true, cell: (row) => count(row.records) },
    { label: "Enqueues", key: "enqueues", num: true, cell: (row) => count(row.enqueues) },
    { label: "Dequeues", key: "dequeues", num: true, cell: (row) => count(row.dequeues) },
    { label: "Waits for room", key: "waits_for_room", num: true, cell: (row) => count(row.waits_for_room) },
  ], { empty: "There are no journals: no durable queue exists, or no store is loaded." });
  const top = h("div");
  const aside = h("div");
  place.append(top, h("h2", {}, "Journals"), listed, h("h2", {}, "Quarantine"), aside);
  return async () => {
    const [row, damage] = await Promise.all([ask("qstore/store"), ask("qstore/quarantine"), show()]);
    aside.replaceChildren(...quarantine(damage));
    const plain = Object.entries(row).filter(([, value]) => typeof value !== "object");
    top.replaceChildren(heading("Store", "Each durable queue has a journal. Its files are freed once no record in them is live."),
      plain.length ? h("details", { class: "card" }, h("summary", {}, "Settings and counters of the store"),
        facts(plain.map(([name, value]) => [name, typeof value === "number" ? count(value) : String(value)])))
        : h("p", { class: "note" }, "No store is loaded: messages are lost when the broker ends."));
  };
}

/** What was damaged and set aside, by starts (files) and by recoveries (records). */
function quarantine(damage) {
  if (!damage.is_local) return [h("p", { class: "quiet" }, "It is shown by a console on the broker's machine that may read the store.")];
  const found = [];
  if (damage.problem) found.push(h("p", { class: "note" }, damage.problem));
  if (damage.files.length) {
    found.push(table("Files that were set aside", [
      { label: "Set aside at a start", cell: (each) => each.name }, { label: "Path", cell: (each) => each.path },
    ], damage.files));
  }
  if (damage.records.length) {
    found.push(table("Records that were set aside", [
      { label: "Queue", cell: (each) => queueLink("/", each.queue) }, { label: "File", cell: (each) => each.file },
      { label: "Offset", num: true, cell: (each) => count(each.offset) }, { label: "Size", num: true, cell: (each) => bytes(each.size) },
      { label: "What is wrong", cell: (each) => each.what },
      { label: "State", cell: (each) => (each.injected ? tag("sent again", "fine") : tag("waits", "doubtful")) },
    ], damage.records), h("p", { class: "quiet" }, "qstore-quarantine shows these records, and can send them to the broker."));
  }
  return found.length ? found : [h("p", { class: "empty" }, "Nothing is in quarantine.")];
}

function transactions(place, ctx) {
  ctx.title("Transactions");
  const found = h("div");
  place.append(heading("Distributed transactions", "A branch in doubt was prepared, and its transaction manager has not decided. Its messages wait until then."), found);
  const end = (row, outcome, label) => button(label, () => dialog(`${label}?`, [
    h("p", {}, "The decision is for good. It should be the same as in all other branches of the transaction."),
    h("pre", {}, row.xid ?? row.object ?? ""),
  ], label, async () => {
    await ask(`qstore/transactions/${part(row.xid)}/${outcome}`, { method: "POST", body: {} });
    say("The branch has ended.");
    ctx.again();
  }, { danger: outcome === "rollback" }));
  return async () => {
    const rows = await ask("qstore/transactions");
    found.replaceChildren(table("Branches", [
      { label: "Branch", cell: (row) => row.xid }, { label: "State", cell: (row) => tag(row.state, row.in_doubt ? "doubtful" : "") },
      { label: "Details", cell: (row) => argumentsText(Object.fromEntries(Object.entries(row).filter(([name, value]) => !["xid", "state", "in_doubt"].includes(name) && typeof value !== "object"))) },
      { label: "", cell: (row) => (row.in_doubt ? h("div", { class: "bar" }, end(row, "commit", "Commit"), end(row, "rollback", "Roll back")) : "") },
    ], rows, { empty: "No branch of a distributed transaction is open." }));
  };
}

// ---- alarms ----

function alarms(place, ctx) {
  ctx.title("Alarms");
  const found = h("div");
  place.append(heading("Alarms", "What the broker is short of, and what somebody should look at."), found);
  const resource = (name, value, limit, share, effect) => h("div", { class: "card" }, h("h3", {}, name),
    h("p", {}, h("b", {}, value), limit ? ` of ${limit}` : ""), share === null ? null : meter(Math.min(1, share), `${Math.round(100 * share)} %`),
    h("p", { class: "quiet" }, effect));
  return async () => {
    const { alarms: rows, resources } = await ask("qstore/alarms");
    const [serious, warnings] = ["alarm", "warning"].map((level) => rows.filter((each) => each.level === level));
    const taken = resources.disk_total ? resources.disk_total - resources.disk_free : 0;
    found.replaceChildren(
      serious.length ? h("div", {}, serious.map(alarmNote)) : h("p", { class: "note fine" }, "✓ No alarm is on."),
      serious.length ? table("Alarms", [
        { label: "What", cell: (each) => tag(each.resource.replace("_", " "), "bad") },
        { label: "Queue", cell: (each) => (each.queue ? queueLink(each.vhost, each.queue) : "–") },
        { label: "Since", cell: (each) => moment(each.since * 1000) },
      ], serious) : "",
      h("h2", {}, "Warnings"), warnings.length ? h("div", {}, warnings.map(alarmNote)) : h("p", { class: "quiet" }, "There are none."),
      h("h2", {}, "Resources"), h("div", { class: "pair small" },
        resource("Memory of messages", bytes(resources.memory_used), resources.memory_limit ? bytes(resources.memory_limit) : "", resources.memory_limit ? resources.memory_used / resources.memory_limit : null,
          "From 90 % publishers are slowed down, at 100 % messages are refused (--broker-memory)."),
        resource("Disk of the store", resources.disk_total ? bytes(taken) : "–", resources.disk_total ? bytes(resources.disk_total) : "", resources.disk_total ? taken / resources.disk_total : null,
          resources.disk_total ? `Beyond ${bytes(resources.disk_total - resources.disk_limit)} journals no longer grow (disk-free-limit).` : "No store is loaded."),
        resource("Descriptors", resources.files ? count(resources.files) : "–", resources.file_limit ? count(resources.file_limit) : "", resources.file_limit ? resources.files / resources.file_limit : null,
          resources.files ? "At the limit no connection is accepted." : "They are known on the broker's own machine only."),
        resource("Memory of the process", resources.resident ? bytes(resources.resident) : "–", "", null, "With connections, queues and everything else.")));
  };
}

// ---- the log ----

const MAX_LINES = 2000;
const LOG_MILLISECONDS = 1000;

function log(place, ctx) {
  ctx.title("Log");
  ctx.every(LOG_MILLISECONDS);
  let last = 0;
  let isHeld = false;
  let wanted = "";
  const lines = h("pre", { class: "log", tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Lines of the log" });
  const fits = (element) => element.textContent.toLowerCase().includes(wanted);
  const filter = h("input", {
    type: "search", class: "search", placeholder: "Only lines with this text", "aria-label": "Only lines with this text",
    oninput: (event) => {
      wanted = event.target.value.toLowerCase();
      for (const each of lines.children) each.hidden = !fits(each);
    },
  });
  const hold = button("Hold", () => {
    isHeld = !isHeld;
    hold.textContent = isHeld ? "Continue" : "Hold";
    if (!isHeld) ctx.again();
  });
  place.append(heading("Log", "The newest lines of the broker's log, as they are written. The broker keeps some thousand; its files have them all."),
    h("div", { class: "bar" }, filter, hold), lines);
  lines.style.minHeight = "300px";
  const kindOf = (line) => (/ (error|critical) /.test(line) ? "line bad" : / warning /.test(line) ? "line doubtful" : "line");
  return async () => {
    if (isHeld) return;
    const found = await ask(`qstore/log?after=${last}&count=500`);
    if (found.last < last) { // the broker was restarted, and has begun to count anew
      last = 0;
      ctx.again();
      return;
    }
    if (last && found.first > last + 1) lines.append(h("span", { class: "line quiet" }, `${count(found.first - last - 1)} lines are missing here\n`));
    const isAtEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
    for (const line of found.lines) {
      const element = h("span", { class: kindOf(line) }, `${line}\n`);
      element.hidden = !fits(element);
      lines.append(element);
    }
    while (lines.children.length > MAX_LINES) lines.firstChild.remove();
    if (found.lines.length) last = found.first + found.lines.length - 1;
    if (isAtEnd) lines.scrollTop = lines.scrollHeight;
  };
}

// ---- access ----

const ACTIONS = ["access", "consume", "publish", "create", "delete", "bind", "unbind", "purge", "move", "redirect", "update"];
const OBJECTS = ["queue", "exchange", "broker", "link", "method", "query", "connection"];

const textField = (label, name, more = {}) => field(label, h("input", { name, ...more }));
const policyForm = (path, label) => ({
  label,
  fields: () => [
    textField("Name", "name", { required: true, autofocus: true }), vhostField(),
    textField("Pattern of names", "pattern", { value: "^", required: true }),
    field("Applies to", h("select", { name: "apply-to" }, ["all", "queues", "exchanges"].map((each) => h("option", {}, each)))),
    textField("Priority", "priority", { type: "number", value: 0, min: 0 }),
    field("Definition, as JSON", h("textarea", { name: "definition", placeholder: '{"max-length": 10000, "message-ttl": 60000}' })),
  ],
  request: (given) => [`${path}/${part(given.vhost, given.name)}`, {
    pattern: given.pattern, definition: objectOf(given.definition), priority: +given.priority, "apply-to": given["apply-to"],
  }],
});
const ACCESS_FORMS = [
  {
    label: "Add or change a user",
    fields: () => [
      textField("Name", "name", { required: true, autofocus: true, autocomplete: "off" }),
      textField("Password", "password", { type: "password", required: true, autocomplete: "new-password" }),
      textField("Tags: administrator, monitoring, management, policymaker", "tags"),
    ],
    request: (given) => [`users/${part(given.name)}`, { password: given.password, tags: given.tags }],
  },
  {
    label: "Set permissions",
    fields: () => [
      textField("User", "user", { required: true, autofocus: true }), vhostField(),
      textField("May configure, as a pattern of names", "configure", { value: ".*" }),
      textField("May write", "write", { value: ".*" }), textField("May read", "read", { value: ".*" }),
    ],
    request: (given) => [`permissions/${part(given.vhost, given.user)}`, { configure: given.configure, write: given.write, read: given.read }],
  },
  policyForm("policies", "Set a policy"), policyForm("operator-policies", "Set an operator policy"),
  {
    label: "Add a virtual host",
    fields: () => [textField("Name", "name", { required: true, autofocus: true }), textField("Description", "description")],
    request: (given) => [`vhosts/${part(given.name)}`, { description: given.description }],
  },
  {
    label: "Limit a virtual host",
    fields: () => [
      vhostField(),
      field("What", h("select", { name: "limit" }, ["max-connections", "max-queues"].map((each) => h("option", {}, each)))),
      textField("At most; -1 for no limit", "value", { type: "number", min: -1, value: 1000, required: true }),
    ],
    request: (given) => [`vhost-limits/${part(given.vhost, given.limit)}`, { value: +given.value }],
  },
];

const changeAccess = (ctx, form) => dialog(form.label, form.fields(), "Save", async (given) => {
  const [path, body] = form.request(given);
  await ask(path, { method: "PUT", body });
  say("It is saved, and in effect.");
  ctx.again();
});

const removeAccess = (ctx, kind, row) => {
  const names = kind === "users" || kind === "vhosts" ? [row.name] : kind === "permissions" ? [row.vhost, row.user]
    : kind === "parameters" ? [row.component, row.vhost, row.name] : [row.vhost, row.name];
  const text = kind === "vhosts" ? "Its queues are deleted with their messages, and its exchanges, permissions and policies, too; its connections are closed."
    : `It is removed from the ${kind.replace("-", " ")} for good.`;
  return dialog(`Remove ${names.at(-1)}?`, [h("p", {}, text)], "Remove", async () => {
    await ask(`${kind}/${part(...names)}`, { method: "DELETE" });
    ctx.again();
  }, { danger: true });
};

function access(place, ctx) {
  ctx.title("Access");
  const verdict = h("p", { role: "status" });
  const form = h("form", {},
    h("div", { class: "fields" },
      field("User", h("input", { name: "user", required: true })),
      field("Wants to", h("select", { name: "action" }, ACTIONS.map((each) => h("option", {}, each)))),
      field("What", h("select", { name: "object" }, OBJECTS.map((each) => h("option", {}, each)))),
      field("Its name", h("input", { name: "name" })), field("Routing key", h("input", { name: "key" }))),
    h("button", { type: "submit", class: "main" }, "Explain"), verdict);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(null, async () => {
      const given = values(form);
      const answer = await ask("qstore/access", { method: "POST", body: { user: given.user, action: given.action, object: given.object, name: given.name, properties: given.key ? { routingkey: given.key } : {} } });
      const isAllowed = answer.result.startsWith("allow");
      verdict.replaceChildren(tag(answer.result, isAllowed ? "fine" : "bad"), isAllowed ? "The rules allow it." : "The rules deny it, or cannot be asked so.");
    });
  });
  const sections = [
    ["vhosts", "Virtual hosts", [["Name", "name"], ["Description", "description"], ["Limits", "limits"]], "?columns=name,description"], // not the sums of all queues
    ["users", "Users", [["Name", "name"], ["Tags", "tags"]]],
    ["permissions", "Permissions", [["User", "user"], ["Host", "vhost"], ["Configure", "configure"], ["Write", "write"], ["Read", "read"]]],
    ["policies", "Policies", [["Name", "name"], ["Host", "vhost"], ["Pattern", "pattern"], ["Applies to", "apply-to"], ["Priority", "priority"], ["Definition", "definition"]]],
    ["operator-policies", "Operator policies", [["Name", "name"], ["Host", "vhost"], ["Pattern", "pattern"], ["Priority", "priority"], ["Definition", "definition"]]],
    ["parameters", "Parameters", [["Component", "component"], ["Name", "name"], ["Host", "vhost"]], "?columns=component,name,vhost"], // values may have passwords
  ];
  const rules = h("div");
  const lower = h("div");
  const changes = h("div", { class: "bar" }, ACCESS_FORMS.map((form) => button(form.label, () => changeAccess(ctx, form))));
  place.append(heading("Access", "Virtual hosts, users, what they may do, and policies.", changes), h("div", { class: "pair" },
    h("div", { class: "card" }, h("h3", {}, "Explain a decision"), form), h("div", { class: "card" }, h("h3", {}, "Access rules"), rules)), lower);
  const text = (value) => (Array.isArray(value) ? value.join(", ") : typeof value === "object" && value ? argumentsText(value) : String(value ?? "–")) || "–";
  return async () => {
    const [acl, limits, ...found] = await Promise.all([ask("qstore/objects/acl").catch(() => []), ask("vhost-limits").catch(() => []), ...sections.map(([path, , , query]) => ask(path + (query || "")).catch(() => null))]);
    const [row] = acl;
    for (const host of found[0] ?? []) host.limits = limits.find((each) => each.vhost === host.name)?.value;
    rules.replaceChildren(row?.enforcingAcl ? facts([
      ["File", row.policyFile || "–"], ["Denied so far", count(row.aclDenyCount)], ["Messages are checked", row.transferAcl ? "yes" : "no"],
    ]) : h("p", { class: "quiet" }, `There is no ACL file: ${found.some((each, index) => sections[index][0] === "permissions" && each?.length) ? "permissions decide." : "without rules and permissions every user may do everything. See --acl-file."}`));
    lower.replaceChildren(...sections.flatMap(([, label, columns], index) => (found[index] === null ? [] : [
      h("h2", {}, label), table(label, [
        ...columns.map(([name, key]) => ({ label: name, cell: (each) => text(each[key]) })),
        { label: "", cell: (each) => (label === "Virtual hosts" && each.name === "/" ? "" : button("Remove", () => removeAccess(ctx, sections[index][0], each), "danger")) },
      ],
        Array.isArray(found[index]) ? found[index] : found[index].items, { empty: `There are no ${label.toLowerCase()}.` }),
    ])));
  };
}

// ---- federation ----

const SHOVEL_STATES = { running: "fine", starting: "doubtful", terminated: "bad" };
const LINK_STATES = { running: "fine", starting: "doubtful", error: "bad", Operational: "fine", Failed: "bad" };
const stateTag = (state, kinds) => tag(state, kinds[state] ?? "doubtful");
const endOf = (row, end) => [
  row[`${end}_queue`] ? `queue ${row[`${end}_queue`]}` : `exchange ${row[`${end}_exchange`] || "(default)"}${row[`${end}_exchange_key`] ? `, key ${row[`${end}_exchange_key`]}` : ""}`,
  row[`${end}_uri`] ? h("div", { class: "uri" }, row[`${end}_uri`]) : null,
];
const uriField = (label, name, more = {}) => field(label, h("input", { name, required: true, autocomplete: "off", spellcheck: "false", placeholder: "amqp://user:password@host/vhost", ...more }));
const whole = (text) => (text === "" ? null : +text);

/** What is not empty. */
const given = (pairs) => Object.fromEntries(Object.entries(pairs).filter(([, value]) => value !== "" && value !== null));

const FEDERATION_FORMS = [
  {
    label: "Add a shovel",
    component: "shovel",
    fields: () => [
      textField("Name", "name", { required: true, autofocus: true }), vhostField(),
      h("div", { class: "fields" },
        uriField("From; amqp:// is this broker", "src-uri", { value: "amqp://" }), textField("Its queue", "src-queue"),
        textField("Or its exchange", "src-exchange"), textField("With the key", "src-exchange-key")),
      h("div", { class: "fields" },
        uriField("To", "dest-uri"), textField("Its queue", "dest-queue"),
        textField("Or its exchange", "dest-exchange"), textField("With the key; empty for each message's own", "dest-exchange-key")),
      field("A message is acknowledged", h("select", { name: "ack-mode" },
        [["on-confirm", "when the destination has confirmed it"], ["on-publish", "when it is published"], ["no-ack", "never: it may be lost"]].map(([value, text]) => h("option", { value }, text)))),
      field("It ends", h("select", { name: "src-delete-after" },
        [["never", "never"], ["queue-length", "after the messages that are there now"]].map(([value, text]) => h("option", { value }, text)))),
    ],
    value: (form) => given({ ...form, name: "", vhost: "" }),
  },
  {
    label: "Add an upstream",
    component: "federation-upstream",
    fields: () => [
      textField("Name", "name", { required: true, autofocus: true }), vhostField(),
      uriField("URI", "uri"),
      h("div", { class: "fields" },
        textField("Exchange there, if it has another name", "exchange"), textField("Queue there, likewise", "queue"),
        textField("Prefetch", "prefetch-count", { type: "number", min: 1, placeholder: "1000" }),
        textField("Seconds to reconnect", "reconnect-delay", { type: "number", min: 0, placeholder: "5" }),
        textField("Hops at most", "max-hops", { type: "number", min: 1, placeholder: "1" })),
      field("A message is acknowledged", h("select", { name: "ack-mode" },
        [["on-confirm", "when it is stored here"], ["on-publish", "when it is published here"], ["no-ack", "never: it may be lost"]].map(([value, text]) => h("option", { value }, text)))),
      h("p", { class: "quiet" }, "A policy with federation-upstream or federation-upstream-set makes exchanges and queues use it: see Access."),
    ],
    value: (form) => given({ ...form, name: "", vhost: "", "prefetch-count": whole(form["prefetch-count"]), "reconnect-delay": whole(form["reconnect-delay"]), "max-hops": whole(form["max-hops"]) }),
  },
  {
    label: "Add a set of upstreams",
    component: "federation-upstream-set",
    fields: () => [
      textField("Name", "name", { required: true, autofocus: true }), vhostField(),
      textField("Upstreams, with commas between them", "upstreams", { required: true }),
    ],
    value: (form) => form.upstreams.split(",").map((name) => ({ upstream: name.trim() })),
  },
];

const INTERLINK_FORMS = [
  {
    label: "Add a domain",
    path: (entered) => `qstore/domains/${part(entered.name)}`,
    fields: () => [
      textField("Name", "name", { required: true, autofocus: true }),
      textField("Addresses", "url", { required: true, placeholder: "host:5672, ssl:host:5671" }),
      h("div", { class: "fields" },
        textField("User", "username"), textField("Password", "password", { type: "password", autocomplete: "new-password" }),
        textField("SASL mechanisms, if not all", "sasl_mechanisms")),
      check("Durable: it survives a restart", h("input", { type: "checkbox", name: "durable", checked: true })),
    ],
    value: (form) => given({ ...form, name: "", durable: !!form.durable }),
  },
  {
    label: "Add a link through a domain",
    path: (entered) => `qstore/interlinks/${part(entered.direction, entered.name)}`,
    fields: () => [
      textField("Name", "name", { required: true, autofocus: true }), textField("Domain", "domain", { required: true }),
      field("Messages come", h("select", { name: "direction" },
        [["incoming", "from the domain"], ["outgoing", "from here"]].map(([value, text]) => h("option", { value }, text)))),
      h("div", { class: "fields" }, textField("Source", "source", { required: true }), textField("Target", "target", { required: true })),
      check("Durable: it survives a restart, as its domain must", h("input", { type: "checkbox", name: "durable", checked: true })),
    ],
    value: (form) => given({ ...form, name: "", direction: "", durable: !!form.durable }),
  },
];

const changeInterlinks = (ctx, form) => dialog(form.label, form.fields(), "Save", async (entered) => {
  await ask(form.path(entered), { method: "PUT", body: form.value(entered) });
  say("It is made.");
  ctx.again();
});

const changeFederation = (ctx, form) => dialog(form.label, form.fields(), "Save", async (entered) => {
  await ask(`parameters/${part(form.component, entered.vhost, entered.name)}`, { method: "PUT", body: { value: form.value(entered) } });
  say("It is saved, and in effect.");
  ctx.again();
});

const removeFederated = (ctx, title, text, path) => dialog(title, [h("p", {}, text)], "Delete", async () => {
  await ask(path, { method: "DELETE" });
  ctx.again();
}, { danger: true });

const restart = (ctx, path) => attempt("It is started again.", async () => {
  await ask(path, { method: "DELETE" });
  ctx.again();
});

const ofUpstream = { exchange: "exchange", queue: "queue", "prefetch-count": "prefetch", "ack-mode": "acknowledged", "max-hops": "hops", "reconnect-delay": "reconnect delay" };

const bridgeOf = (bridge, link) => String(bridge.linkRef?._object_name ?? "").endsWith(`:link:${link.name}`);

function federation(place, ctx) {
  ctx.title("Federation");
  const shown = h("div");
  place.append(heading("Federation", "Messages that this broker fetches from others, or takes to them.",
    [...FEDERATION_FORMS.map((form) => button(form.label, () => changeFederation(ctx, form))),
      ...INTERLINK_FORMS.map((form) => button(form.label, () => changeInterlinks(ctx, form)))]), shown);
  const settings = Object.keys(ofUpstream).map((name) => `value.${name}`).join(",");
  return async () => {
    const optional = (path) => ask(path).catch((error) => (error.status === 401 || error.status === 403 ? [] : Promise.reject(error)));
    const [shovels, links, upstreams, sets, qpid, bridges, domains, interlinks] = await Promise.all([
      ask("shovels"), ask("federation-links"),
      optional(`parameters/federation-upstream?columns=vhost,name,${settings}`), // without the URI, which may have a password
      optional("parameters/federation-upstream-set?columns=vhost,name,value"),
      ask("qstore/objects/link"), ask("qstore/objects/bridge"), ask("qstore/domains"), ask("qstore/interlinks"),
    ]);
    shown.replaceChildren(
      h("h2", {}, "Shovels"), table("Shovels", [
        { label: "Name", cell: (row) => row.name }, { label: "Host", cell: (row) => row.vhost },
        { label: "State", cell: (row) => [stateTag(row.state, SHOVEL_STATES), row.blocked_status === "blocked" ? tag("blocked", "doubtful") : null, row.reason ? h("div", { class: "quiet" }, row.reason) : null] },
        { label: "From", cell: (row) => endOf(row, "src") }, { label: "To", cell: (row) => endOf(row, "dest") },
        { label: "Forwarded", num: true, cell: (row) => count(row.messages_forwarded) },
        { label: "Pending", num: true, cell: (row) => count(row.messages_pending) },
        { label: "", cell: (row) => {
          const path = `shovels/vhost/${part(row.vhost, row.name)}`;
          return h("div", { class: "row" }, button("Restart", () => restart(ctx, `${path}/restart`)),
            button("Delete", () => removeFederated(ctx, `Delete ${row.name}?`, "Messages that it has not acknowledged stay where they are.", path), "danger"));
        } },
      ], shovels, { empty: "There are no shovels. A shovel moves messages from a queue or an exchange to another one, here or at another broker." }),
      h("h2", {}, "Links of federated exchanges and queues"), table("Federation links", [
        { label: "Here", cell: (row) => (row.type === "queue" ? queueLink(row.vhost, row.queue) : exchangeLink(row.vhost, row.exchange)) },
        { label: "Host", cell: (row) => row.vhost }, { label: "Kind", cell: (row) => row.type },
        { label: "Upstream", cell: (row) => [row.upstream, h("div", { class: "uri" }, row.uri)] },
        { label: "There", cell: (row) => row[`upstream_${row.type}`] },
        { label: "State", cell: (row) => [stateTag(row.status, LINK_STATES), row.error ? h("div", { class: "quiet" }, row.error) : null] },
        { label: "Forwarded", num: true, cell: (row) => count(row.messages_forwarded) },
        { label: "", cell: (row) => button("Restart", () => restart(ctx, `federation-links/vhost/${part(row.vhost, row.id, row.node)}/restart`)) },
      ], links, { empty: "No exchange or queue is federated. It takes an upstream, and a policy that uses it." }),
      h("h2", {}, "Upstreams"), table("Upstreams", [
        { label: "Name", cell: (row) => row.name }, { label: "Host", cell: (row) => row.vhost },
        { label: "Settings", cell: (row) => Object.entries(row.value ?? {}).map(([name, value]) => `${ofUpstream[name]} ${value}`).join(", ") || "–" },
        { label: "", cell: (row) => button("Delete", () => removeFederated(ctx, `Delete ${row.name}?`, "The links of all exchanges and queues that use it end.", `parameters/federation-upstream/${part(row.vhost, row.name)}`), "danger") },
      ], upstreams, { empty: "There are no upstreams." }),
      sets.length ? h("h2", {}, "Sets of upstreams") : "", sets.length ? table("Sets of upstreams", [
        { label: "Name", cell: (row) => row.name }, { label: "Host", cell: (row) => row.vhost },
        { label: "Upstreams", cell: (row) => row.value.map((each) => each.upstream).join(", ") },
        { label: "", cell: (row) => button("Delete", () => removeFederated(ctx, `Delete ${row.name}?`, "Policies that name it have no upstreams then.", `parameters/federation-upstream-set/${part(row.vhost, row.name)}`), "danger") },
      ], sets) : "",
      domains.length ? h("h2", {}, "Domains of AMQP 1.0") : "", domains.length ? table("Domains of AMQP 1.0", [
        { label: "Name", cell: (row) => row.name }, { label: "Addresses", cell: (row) => h("div", { class: "uri" }, row.url) },
        { label: "User", cell: (row) => row.username || "–" }, { label: "SASL mechanisms", cell: (row) => row.sasl_mechanisms || "all" },
        { label: "Durable", cell: (row) => (row.durable ? "yes" : "no") },
        { label: "", cell: (row) => button("Delete", () => removeFederated(ctx, `Delete ${row.name}?`, "It must have no links. What clients send and receive through it ends.", `qstore/domains/${part(row.name)}`), "danger") },
      ], domains) : "",
      interlinks.length ? h("h2", {}, "Links of AMQP 1.0") : "", interlinks.length ? table("Links of AMQP 1.0", [
        { label: "Name", cell: (row) => row.name }, { label: "Domain", cell: (row) => row.domain },
        { label: "Direction", cell: (row) => row.direction },
        { label: "State", cell: (row) => [stateTag(row.state, SHOVEL_STATES), row.reason ? h("div", { class: "quiet" }, row.reason) : null] },
        { label: "Source", cell: (row) => row.source }, { label: "Target", cell: (row) => row.target },
        { label: "Forwarded", num: true, cell: (row) => count(row.messages_forwarded) },
        { label: "Pending", num: true, cell: (row) => count(row.messages_pending) },
        { label: "Durable", cell: (row) => (row.durable ? "yes" : "no") },
        { label: "", cell: (row) => {
          const path = `qstore/interlinks/${part(row.direction, row.name)}`;
          return h("div", { class: "row" }, button("Restart", () => restart(ctx, `${path}/restart`)),
            button("Delete", () => removeFederated(ctx, `Delete ${row.name}?`, "Messages that are not settled stay where they are.", path), "danger"));
        } },
      ], interlinks) : "",
      qpid.length ? h("h2", {}, "Links of AMQP 0-10") : "", qpid.length ? table("Links of AMQP 0-10", [
        { label: "Name", cell: (row) => row.name }, { label: "To", cell: (row) => `${row.transport}:${row.host}:${row.port}` },
        { label: "State", cell: (row) => [stateTag(row.state, LINK_STATES), row.lastError ? h("div", { class: "quiet" }, row.lastError) : null] },
        { label: "Routes", num: true, cell: (row) => count(bridges.filter((each) => bridgeOf(each, row)).length) },
        { label: "Durable", cell: (row) => (row.durable ? "yes" : "no") },
      ], qpid) : "",
      bridges.length ? h("h2", {}, "Routes of AMQP 0-10") : "", bridges.length ? table("Routes of AMQP 0-10", [
        { label: "Name", cell: (row) => row.name },
        { label: "From", cell: (row) => `${row.srcIsQueue ? "queue" : "exchange"} ${row.src}` },
        { label: "To", cell: (row) => row.dest || "–" }, { label: "Key", cell: (row) => (row.dynamic ? tag("dynamic") : row.key || "–") },
      ], bridges) : "");
  };
}

export const PAGES = {
  "": overview, queues, queue, exchanges, exchange, connections, connection, channels, federation, store, transactions, access,
  alarms, log,
};
