// A client of Node's rhea. `node rhea_client.js PORT SCENARIO`: exits with 0 if it holds.
//
// `all` runs every scenario, and prints one line of JSON: scenario -> null, or what went wrong. `publish` is a client that is killed with
// its broker: it prints the number of each message that was accepted. `drain` prints what is left.
"use strict";

const assert = require("node:assert/strict");
const { randomUUID } = require("node:crypto");
const rhea = require("rhea");
const promised = require("rhea-promise");

const [port, wanted, from] = process.argv.slice(2);
const OPTIONS = { host: "127.0.0.1", port: Number(port), username: "guest", password: "guest", reconnect: false };
const PATIENCE = 60_000;
const ON_DEMAND = ["create-on-demand", "queue", "durable"];

function patient(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} in ${PATIENCE} ms`)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

const once = (emitter, event) => patient(new Promise((resolve) => emitter.once(event, resolve)), event);

async function connected(use, options = {}) {
  const connection = rhea.create_container().connect({ ...OPTIONS, ...options });
  connection.on("error", () => undefined);
  try {
    return await use(connection, `q-${randomUUID()}`);
  } finally {
    connection.close();
  }
}

async function sender(connection, queue, more = {}) {
  const link = connection.open_sender({ target: { address: queue, capabilities: ON_DEMAND }, ...more });
  await once(link, "sendable");
  return link;
}

async function send(link, message) {
  const delivery = link.send(message);
  return patient(
    new Promise((resolve) => {
      for (const event of ["accepted", "rejected", "released", "modified"]) {
        const heard = (context) => {
          if (context.delivery === delivery) {
            link.removeListener(event, heard);
            resolve(event);
          }
        };
        link.on(event, heard);
      }
    }),
    "outcome",
  );
}

/** The next messages of a queue, as many as are wanted. */
async function take(connection, queue, count, options = {}) {
  const found = [];
  const link = connection.open_receiver({ source: queue, credit_window: 10, ...options });
  await patient(
    new Promise((resolve, reject) => {
      link.on("message", (context) => found.push(context.message) === count && resolve());
      link.on("receiver_error", () => reject(new Error(String(link.error))));
    }),
    `${count} messages`,
  );
  link.close();
  return found;
}

const SCENARIOS = {
  async "sends and receives"() {
    await connected(async (connection, queue) => {
      const link = await sender(connection, queue);
      const message = { message_id: "m", subject: "s", durable: true, priority: 7, application_properties: { a: 1, b: "c" } };
      for (let number = 0; number < 5; number += 1) {
        assert.equal(await send(link, { ...message, body: { number, list: [1, "two", null] } }), "accepted");
      }
      const found = await take(connection, queue, 5);
      assert.deepEqual(found.map((each) => each.body.number), [0, 1, 2, 3, 4]);
      assert.deepEqual(found[0].body.list, [1, "two", null]);
      assert.deepEqual({ ...found[0].application_properties }, { a: 1, b: "c" });
      assert.equal(found[0].message_id, "m");
      assert.equal(found[0].priority, 7);
    });
  },
  async "addresses as RabbitMQ has them"() {
    await connected(async (connection, queue) => {
      await sender(connection, queue);
      const link = await sender(connection, `/queues/${encodeURIComponent(queue)}`);
      assert.equal(await send(link, { body: "x" }), "accepted");
      const lost = await sender(connection, "/exchanges/amq.direct/nobody");
      assert.equal(await send(lost, { body: "x" }), "released");
      assert.equal((await take(connection, `/queues/${queue}`, 1))[0].body, "x");
    });
  },
  async "large messages"() {
    await connected(async (connection, queue) => {
      const body = Buffer.alloc(2_000_000, "abcdefg");
      const link = await sender(connection, queue);
      assert.equal(await send(link, { body: rhea.message.data_section(body) }), "accepted");
      const [found] = await take(connection, queue, 1);
      assert.ok(found.body.content.equals(body));
    }, { max_frame_size: 8_192 });
  },
  async "many messages at once"() {
    await connected(async (connection, queue) => {
      const link = await sender(connection, queue);
      let sent = 0;
      let accepted = 0;
      await patient(
        new Promise((resolve) => {
          const go = () => {
            while (link.sendable() && sent < 5_000) {
              link.send({ body: sent });
              sent += 1;
            }
          };
          link.on("sendable", go);
          link.on("accepted", () => (accepted += 1) === 5_000 && resolve());
          go();
        }),
        "all outcomes",
      );
      const found = await take(connection, queue, 5_000, { credit_window: 100 });
      assert.deepEqual(found.map((each) => each.body), [...Array(5_000).keys()]);
    });
  },
  async "outcomes of a receiver"() {
    await connected(async (connection, queue) => {
      const link = await sender(connection, queue);
      await send(link, { body: "x" });
      const receiver = connection.open_receiver({ source: queue, credit_window: 0, autoaccept: false });
      const counts = [];
      for (const settle of [(d) => d.release({ delivery_failed: true }), (d) => d.release(), (d) => d.reject()]) {
        receiver.add_credit(1);
        const { delivery, message } = await once(receiver, "message");
        counts.push(message.delivery_count || 0);
        settle(delivery);
      }
      assert.deepEqual(counts, [0, 1, 1]);
    });
  },
  async "draining"() {
    await connected(async (connection, queue) => {
      const link = await sender(connection, queue);
      await send(link, { body: "x" });
      const receiver = connection.open_receiver({ source: queue, credit_window: 0 });
      await once(receiver, "receiver_open");
      const got = once(receiver, "message");
      const drained = once(receiver, "receiver_drained");
      receiver.add_credit(5);
      receiver.drain_credit();
      assert.equal((await got).message.body, "x");
      await drained;
    });
  },
  async "a dynamic node answers"() {
    await connected(async (connection, queue) => {
      const answers = connection.open_receiver({ source: { dynamic: true } });
      await once(answers, "receiver_open");
      const requests = connection.open_receiver({ source: { address: queue, capabilities: ON_DEMAND } });
      requests.on("message", (context) => connection.send({ to: context.message.reply_to, body: "answer" }));
      const link = await sender(connection, queue);
      const got = once(answers, "message");
      link.send({ body: "request", reply_to: answers.source.address });
      assert.equal((await got).message.body, "answer");
    });
  },
  async "an unknown node is refused"() {
    await connected(async (connection) => {
      const link = connection.open_sender("nowhere");
      await once(link, "sender_error");
      assert.equal(link.error.condition, "amqp:not-found");
    });
  },
  async "selectors"() {
    await connected(async (connection, queue) => {
      const link = await sender(connection, queue);
      for (const colour of ["red", "green", "red"]) await send(link, { body: colour, application_properties: { colour } });
      const source = { address: queue, filter: rhea.filter.selector("colour = 'green'") };
      assert.equal((await take(connection, "", 1, { source }))[0].body, "green");
    });
  },
  async "without a login"() {
    await connected(async (connection, queue) => {
      assert.equal(await send(await sender(connection, queue), { body: "x" }), "accepted");
    }, { username: undefined, password: undefined });
  },
  async "rhea-promise"() {
    const connection = new promised.Connection(OPTIONS);
    await connection.open();
    const queue = `q-${randomUUID()}`;
    const link = await connection.createAwaitableSender({ target: { address: queue, capabilities: ON_DEMAND } });
    const delivery = await link.send({ body: "x" });
    assert.equal(delivery.remote_settled, true);
    const got = new Promise((resolve) => {
      connection.createReceiver({ source: queue, onMessage: (context) => resolve(context.message.body), onError: () => undefined });
    });
    assert.equal(await patient(got, "message"), "x");
    await link.close();
    await connection.close();
  },
};

async function all() {
  const results = {};
  await Promise.all(
    Object.entries(SCENARIOS).map(async ([name, scenario]) => {
      results[name] = await scenario().then(() => null, (error) => String(error.stack));
    }),
  );
  console.log(JSON.stringify(results));
  process.exit(0);
}

/** Publishes until the broker is gone. */
async function publish() {
  const connection = rhea.create_container().connect({ ...OPTIONS });
  const ended = new Promise((resolve) => {
    for (const event of ["disconnected", "connection_error", "error", "protocol_error"]) connection.on(event, resolve);
  });
  const link = connection.open_sender({ target: { address: "kept", capabilities: ON_DEMAND } });
  let next = Number(from);
  const numbers = new Map();
  link.on("accepted", (context) => console.log(numbers.get(context.delivery.id)));
  link.on("sendable", () => {
    while (link.sendable()) {
      numbers.set(link.send({ body: next, durable: true }).id, next);
      next += 1;
    }
  });
  await ended;
  process.exit(0);
}

async function drain() {
  const connection = rhea.create_container().connect({ ...OPTIONS });
  const receiver = connection.open_receiver({ source: "kept", credit_window: 0 });
  let count = 0;
  receiver.on("message", (context) => {
    console.log(context.message.body);
    count += 1;
  });
  await once(receiver, "receiver_open");
  for (;;) {
    const before = count;
    const drained = once(receiver, "receiver_drained");
    receiver.add_credit(1_000);
    receiver.drain_credit();
    await drained;
    if (count === before) break;
  }
  connection.close();
  await once(connection, "connection_close");
  process.exit(0);
}

({ all, publish, drain })[wanted]();
