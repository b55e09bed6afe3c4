// Clients over WebSocket: `node websocket_client.js PORT SCHEME [CA]` sends and receives with Node's rhea (AMQP 1.0) and
// with @cloudamqp/amqp-client (AMQP 0-9-1), and prints what each has received, as JSON.
"use strict";

const { readFileSync } = require("node:fs");
const rhea = require("rhea");
const WebSocket = require("ws");
const { AMQPWebSocketClient } = require("@cloudamqp/amqp-client");

const [port, scheme, authority] = process.argv.slice(2);
const url = `${scheme}://127.0.0.1:${port}/`;
const tls = authority ? { ca: readFileSync(authority) } : {};
const BODIES = ["", "hello", "x".repeat(70_000), "é".repeat(200)];

class Socket extends WebSocket {
  constructor(address, protocols) {
    super(address, protocols, tls);
  }
}
globalThis.WebSocket = Socket;

function links() {
  return new Promise((resolve, reject) => {
    const container = rhea.create_container();
    const details = container.websocket_connect(Socket)(url, ["binary", "AMQPWSB10", "amqp"], {});
    const connection = container.connect({ connection_details: details, username: "guest", password: "guest", reconnect: false });
    const source = { address: "over-websocket", capabilities: ["create-on-demand", "queue"] };
    const received = [];
    container.on("disconnected", (context) => reject(context.error ?? new Error("disconnected")));
    container.on("connection_open", () => {
      connection.open_receiver({ source });
      connection.open_sender({ target: source });
    });
    container.once("sendable", (context) => BODIES.forEach((body) => context.sender.send({ body })));
    container.on("message", (context) => {
      received.push(context.message.body);
      if (received.length === BODIES.length) {
        container.on("connection_close", () => resolve(received));
        connection.close();
      }
    });
  });
}

async function basic() {
  const client = new AMQPWebSocketClient(url, "/", "guest", "guest");
  const connection = await client.connect();
  const channel = await connection.channel();
  const { name } = await channel.queueDeclare("", { exclusive: true });
  await channel.confirmSelect();
  const received = [];
  const done = new Promise((resolve) => {
    channel.basicConsume(name, { noAck: false }, (message) => {
      received.push(message.bodyString() ?? "");
      message.ack();
      if (received.length === BODIES.length) resolve();
    });
  });
  for (const body of BODIES) await channel.basicPublish("", name, body);
  await done;
  await connection.close();
  return received;
}

const late = setTimeout(() => process.exit(2), 60_000);
Promise.all([links(), basic()])
  .then(([linked, delivered]) => {
    const sizes = (bodies) => bodies.map((body) => Buffer.byteLength(body));
    console.log(JSON.stringify({ rhea: sizes(linked), "amqp-client": sizes(delivered) }));
    clearTimeout(late);
  })
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
