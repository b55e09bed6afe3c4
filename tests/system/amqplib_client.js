// A client of Node's amqplib. `node amqplib_client.js PORT SCENARIO`: exits with 0 if it holds.
//
// `all` runs every scenario but the last two, and prints one line of JSON: scenario -> null, or what went wrong. `publish` is a client
// that is killed with its broker: it prints the number of each message that was confirmed. `drain` prints what is left.
"use strict";

const assert = require("node:assert/strict");
const { randomUUID } = require("node:crypto");
const amqp = require("amqplib");
const callbacks = require("amqplib/callback_api");

const [port, wanted] = process.argv.slice(2);
const URL = `amqp://guest:guest@127.0.0.1:${port}`;
const PATIENCE = 60_000;

// ---- helpers ----

function patient(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} in ${PATIENCE} ms`)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

const once = (emitter, event) => patient(new Promise((resolve) => emitter.once(event, resolve)), event);

/** Runs `use` with a channel of its own, and with a queue name. */
async function withChannel(use, kind = "createChannel") {
  const connection = await amqp.connect(URL);
  const channel = await connection[kind]();
  channel.on("error", () => undefined); // what is called fails as well
  try {
    return await use(channel, `q-${randomUUID()}`, connection);
  } finally {
    await connection.close();
  }
}

const BASIC_QOS = (60 << 16) | 10; // class and method

/** The code and text with which a broker closes the channel that `misuse` uses. */
async function closedBy(misuse, kind) {
  return withChannel(async (channel, queue) => {
    const failed = once(channel, "error");
    await Promise.resolve(misuse(channel, queue)).catch(() => undefined);
    return failed;
  }, kind);
}

/** The next messages of a queue, as many as are wanted. */
async function take(channel, queue, count, options = { noAck: true }) {
  const found = [];
  let tag;
  await patient(
    new Promise((resolve, reject) => {
      const got = (message) => (message === null ? reject(new Error("cancelled")) : found.push(message) === count && resolve());
      channel.consume(queue, got, options).then((answer) => {
        tag = answer.consumerTag;
      }, reject);
    }),
    `${count} messages`,
  );
  await channel.cancel(tag);
  return found;
}

const texts = (messages) => messages.map((message) => message.content.toString());

// ---- the promise API ----

const scenarios = {
  async confirms_and_acknowledgements() {
    await withChannel(async (channel, queue) => {
      await channel.assertQueue(queue, { durable: true });
      for (let number = 0; number < 50; number++) channel.sendToQueue(queue, Buffer.from(`${number}`), { persistent: true });
      await patient(channel.waitForConfirms(), "confirms");
      await channel.prefetch(5);
      const found = [];
      const { consumerTag } = await channel.consume(queue, (message) => found.push(message));
      while (found.length < 5) await new Promise(setImmediate);
      assert.equal((await channel.checkQueue(queue)).messageCount, 45);
      assert.equal(found.length, 5);
      channel.ack(found[4], true);
      while (found.length < 10) await new Promise(setImmediate);
      channel.nack(found[9], false, true); // comes again
      while (found.length < 11) await new Promise(setImmediate);
      assert.deepEqual([found[10].content.toString(), found[10].fields.redelivered], ["9", true]);
      channel.reject(found[5], false);
      await channel.cancel(consumerTag);
      channel.ackAll();
      assert.deepEqual(texts(found.slice(0, 10)), [..."0123456789"]);
      assert.equal((await channel.checkQueue(queue)).messageCount, 50 - found.length + 1);
      assert.equal((await channel.purgeQueue(queue)).messageCount, 50 - found.length + 1);
      assert.equal((await channel.deleteQueue(queue)).messageCount, 0);
    }, "createConfirmChannel");
  },

  async single_confirms_with_callbacks() {
    await withChannel(async (channel, queue) => {
      await channel.assertQueue(queue, { durable: true, arguments: { "x-max-length": 1, "x-overflow": "reject-publish" } });
      const publish = (body) => patient(new Promise((resolve) => channel.sendToQueue(queue, Buffer.from(body), {}, resolve)), "confirm");
      assert.equal(await publish("taken"), null);
      assert.match(String(await publish("refused")), /nacked/);
    }, "createConfirmChannel");
  },

  async mandatory_messages_come_back() {
    await withChannel(async (channel, queue) => {
      const back = once(channel, "return");
      channel.publish("", queue, Buffer.from("back"), { mandatory: true, messageId: "m" });
      const { fields, properties, content } = await back;
      assert.deepEqual([fields.replyCode, fields.replyText, fields.routingKey], [312, "NO_ROUTE", queue]);
      assert.deepEqual([properties.messageId, content.toString()], ["m", "back"]);
      await patient(channel.waitForConfirms(), "confirm");
    }, "createConfirmChannel");
  },

  async headers_of_all_types() {
    await withChannel(async (channel, queue) => {
      const headers = {
        text: "ü", yes: true, no: false, small: 7, negative: -7, large: 2 ** 40, float: 1.5, none: null, bytes: Buffer.from([0, 255]),
        list: ["a", 1, [true], { b: 2 }], map: { nested: { deeper: "x" } }, when: { "!": "timestamp", value: 1_700_000_000 },
        byte: { "!": "byte", value: -3 }, short: { "!": "short", value: 300 }, long: { "!": "long", value: 2 ** 50 },
        double: { "!": "double", value: 0.1 }, decimal: { "!": "decimal", value: { digits: 12345, places: 2 } },
      };
      const options = {
        contentType: "text/plain", contentEncoding: "utf-8", priority: 3, correlationId: "c", replyTo: "r", messageId: "i",
        timestamp: 1_700_000_000, type: "t", appId: "a", expiration: "60000", persistent: true, headers,
      };
      await channel.assertQueue(queue);
      channel.sendToQueue(queue, Buffer.from("x"), options);
      const [{ properties }] = await take(channel, queue, 1);
      const { headers: found, ...others } = properties;
      for (const [name, value] of Object.entries(options)) {
        if (name !== "headers" && name !== "persistent") assert.equal(others[name], value, name);
      }
      assert.equal(others.deliveryMode, 2);
      const plain = { ...headers, byte: -3, short: 300, long: 2 ** 50, double: 0.1 };
      for (const [name, value] of Object.entries(plain)) assert.deepEqual(found[name], value, name);
    });
  },

  async exchanges_bound_to_exchanges() {
    await withChannel(async (channel, queue) => {
      const [source, destination] = [`${queue}.source`, `${queue}.destination`];
      await channel.assertExchange(source, "topic", { durable: true });
      await channel.assertExchange(destination, "fanout", { durable: true });
      await channel.assertQueue(queue);
      await channel.bindQueue(queue, destination, "");
      await channel.bindExchange(destination, source, "orders.#");
      channel.publish(source, "orders.new", Buffer.from("1"));
      channel.publish(source, "other", Buffer.from("lost"));
      await channel.unbindExchange(destination, source, "orders.#");
      channel.publish(source, "orders.late", Buffer.from("lost"));
      await channel.unbindQueue(queue, destination, "");
      assert.equal((await channel.checkQueue(queue)).messageCount, 1);
      await channel.deleteExchange(source);
      await channel.deleteExchange(destination);
    });
  },

  async headers_exchanges() {
    await withChannel(async (channel, queue) => {
      await channel.assertQueue(queue);
      await channel.bindQueue(queue, "amq.headers", "", { "x-match": "any", kind: "a", size: 1 });
      for (const kind of ["a", "b"]) channel.publish("amq.headers", "", Buffer.from(kind), { headers: { kind } });
      assert.deepEqual(texts(await take(channel, queue, 1)), ["a"]);
      assert.equal((await channel.checkQueue(queue)).messageCount, 0);
    });
  },

  async dead_letters() {
    await withChannel(async (channel, queue) => {
      const dead = `${queue}.dead`;
      await channel.assertQueue(dead);
      await channel.assertQueue(queue, { deadLetterExchange: "", deadLetterRoutingKey: dead, messageTtl: 100, maxLength: 2 });
      for (const body of ["displaced", "rejected", "expired"]) channel.sendToQueue(queue, Buffer.from(body));
      const rejected = await channel.get(queue);
      channel.nack(rejected, false, false);
      const found = await take(channel, dead, 3);
      assert.deepEqual(texts(found).sort(), ["displaced", "expired", "rejected"]);
      for (const { content, properties } of found) {
        const [death] = properties.headers["x-death"];
        assert.deepEqual([death.queue, death.count, death["routing-keys"]], [queue, 1, [queue]]);
        assert.equal(death.reason, { displaced: "maxlen" }[content] ?? content.toString());
      }
    });
  },

  async several_routing_keys() {
    await withChannel(async (channel, queue) => {
      const names = [queue, `${queue}.cc`, `${queue}.bcc`];
      for (const name of names) await channel.assertQueue(name);
      channel.sendToQueue(queue, Buffer.from("x"), { CC: names[1], BCC: [names[2]] });
      for (const name of names) {
        const [{ fields, properties }] = await take(channel, name, 1);
        assert.deepEqual([fields.routingKey, properties.headers], [queue, { CC: [names[1]] }]);
      }
    });
  },

  async big_messages() {
    await withChannel(async (channel, queue) => {
      await channel.assertQueue(queue, { durable: true });
      const body = Buffer.alloc(5_000_000, "0123456789");
      channel.sendToQueue(queue, body, { persistent: true });
      channel.sendToQueue(queue, Buffer.alloc(0), { persistent: true });
      await patient(channel.waitForConfirms(), "confirms");
      const [first, second] = await take(channel, queue, 2);
      assert.ok(first.content.equals(body));
      assert.equal(second.content.length, 0);
    }, "createConfirmChannel");
  },

  async server_named_queues() {
    await withChannel(async (channel, _, connection) => {
      const { queue } = await channel.assertQueue("", { exclusive: true });
      assert.match(queue, /^amq\.gen-/);
      await channel.bindQueue(queue, "amq.fanout", "");
      channel.publish("amq.fanout", "", Buffer.from("x"));
      assert.deepEqual(texts(await take(channel, queue, 1)), ["x"]);
      const other = await amqp.connect(URL);
      const stranger = await other.createChannel();
      const failed = once(stranger, "error");
      await assert.rejects(stranger.checkQueue(queue));
      assert.equal((await failed).code, 405);
      await other.close();
      assert.ok(connection.connection.serverProperties.capabilities.direct_reply_to);
    });
  },

  async a_queue_with_consumers_is_deleted() {
    await withChannel(async (channel, queue) => {
      await channel.assertQueue(queue);
      const told = patient(new Promise((resolve) => channel.consume(queue, resolve)), "cancel");
      await channel.checkQueue(queue);
      await channel.deleteQueue(queue);
      assert.equal(await told, null);
      assert.equal(await channel.get((await channel.assertQueue(queue)).queue), false);
    });
  },

  async misuse_closes_the_channel() {
    const expected = [
      [406, "PRECONDITION_FAILED", (channel, queue) => channel.assertExchange(queue, "nonsense")],
      [404, "NOT_FOUND", (channel, queue) => channel.checkQueue(queue)],
      [404, "NOT_FOUND", (channel, queue) => channel.consume(queue, () => undefined)],
      [404, "NOT_FOUND", (channel, queue) => channel.publish(queue, "", Buffer.from("x"))],
      [404, "NOT_FOUND", (channel, queue) => channel.bindQueue(queue, "amq.direct", "")],
      [403, "ACCESS_REFUSED", (channel) => channel.assertQueue("amq.mine")],
      [406, "PRECONDITION_FAILED", (channel) => channel.ack({ fields: { deliveryTag: 7 } })],
      [406, "PRECONDITION_FAILED", (channel, queue) => channel.publish("", queue, Buffer.from("x"), { expiration: "soon" })],
      [406, "PRECONDITION_FAILED", (channel, queue) => channel.publish("", queue, Buffer.from("x"), { headers: { CC: 1 } })],
      [406, "PRECONDITION_FAILED", async (channel, queue) => {
        await channel.assertQueue(queue, { durable: true });
        await channel.assertQueue(queue, { durable: false });
      }],
      [406, "PRECONDITION_FAILED", async (channel, queue) => {
        await channel.assertQueue(queue, { messageTtl: 1 });
        await channel.assertQueue(queue, { messageTtl: 2 });
      }],
      [406, "PRECONDITION_FAILED", async (channel, queue) => {
        await channel.assertExchange(queue, "direct");
        await channel.assertExchange(queue, "fanout");
      }],
    ];
    for (const [code, name, misuse] of expected) {
      const error = await closedBy(misuse);
      assert.equal(error.code, code, String(misuse));
      assert.ok(error.message.includes(name), error.message);
    }
  },

  async misuse_closes_the_connection() {
    const connection = await amqp.connect(URL);
    const channel = await connection.createChannel();
    const failed = once(connection, "error");
    const fields = { prefetchCount: 1, prefetchSize: 1, global: false }; // by size, which none of its calls has
    await channel.rpc(BASIC_QOS, fields, BASIC_QOS + 1).catch(() => undefined);
    assert.equal((await failed).code, 540);
    await assert.rejects(amqp.connect(`${URL}/other`), /ConnectionClose/);
  },

  async heartbeats() {
    const connection = await amqp.connect(`${URL}?heartbeat=1`);
    assert.equal(connection.connection.heartbeat, 1);
    const closed = [];
    connection.on("error", (error) => closed.push(error));
    await new Promise((resolve) => setTimeout(resolve, 2_500)); // amqplib gives up after two intervals of silence
    assert.deepEqual(closed, []);
    const channel = await connection.createChannel();
    await channel.assertQueue("", { exclusive: true });
    await connection.close();
  },

  // ---- the callback API ----

  async with_callbacks() {
    const call = (object, method, ...given) =>
      patient(
        new Promise((resolve, reject) => {
          object[method](...given, (error, answer) => (error ? reject(error) : resolve(answer)));
        }),
        method,
      );
    const queue = `q-${randomUUID()}`;
    const connection = await call(callbacks, "connect", URL);
    const channel = await call(connection, "createConfirmChannel");
    await call(channel, "assertQueue", queue, { durable: true });
    for (const body of ["1", "2", "3"]) await call(channel, "sendToQueue", queue, Buffer.from(body), { persistent: true });
    await call(channel, "waitForConfirms");
    const message = await call(channel, "get", queue, {});
    assert.equal(message.content.toString(), "1");
    channel.nack(message);
    const found = [];
    const answer = await call(channel, "consume", queue, (each) => found.push(each), {});
    while (found.length < 3) await new Promise(setImmediate);
    assert.deepEqual(found.map((each) => [each.content.toString(), each.fields.redelivered]), [["1", true], ["2", false], ["3", false]]);
    channel.ackAll();
    await call(channel, "cancel", answer.consumerTag);
    assert.equal((await call(channel, "deleteQueue", queue, {})).messageCount, 0);
    const failed = once(channel, "error");
    await assert.rejects(call(channel, "checkQueue", queue));
    assert.equal((await failed).code, 404);
    await call(connection, "close");
  },
};

// ---- with a broker that is killed ----

/** Publishes numbers from `first` on, a hundred unconfirmed at a time, until the connection is lost. */
async function publish(first) {
  const connection = await amqp.connect(URL);
  connection.on("error", () => undefined);
  const lost = new Promise((resolve) => connection.on("close", resolve));
  const channel = await connection.createConfirmChannel();
  channel.on("error", () => undefined);
  await channel.assertQueue("node", { durable: true });
  let number = first;
  let waiting = 0;
  const fill = () => {
    while (waiting < 100) {
      const mine = number++;
      waiting++;
      channel.sendToQueue("node", Buffer.from(`${mine}`), { persistent: true }, (error) => {
        waiting--;
        if (error === null) process.stdout.write(`${mine}\n`);
        setImmediate(fill);
      });
    }
  };
  fill();
  await lost;
}

/** Prints the numbers that are on the queue. */
async function drain() {
  await withChannel(async (channel) => {
    await channel.assertQueue("node", { durable: true });
    for (let message = await channel.get("node"); message; message = await channel.get("node")) {
      process.stdout.write(`${message.content}\n`);
    }
  });
}

async function all() {
  const results = {};
  await Promise.all(
    Object.entries(scenarios).map(async ([name, run]) => {
      results[name] = await run().then(() => null, (error) => error.stack);
    }),
  );
  process.stdout.write(JSON.stringify(results));
}

const others = { all, drain, publish: () => publish(Number(process.argv[4])) };
(others[wanted] ?? scenarios[wanted])().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
