// npm's rabbitmq-admin, unchanged, against a console: `node rabbitmq_admin_client.js PORT`. Prints what it saw as JSON.
"use strict";
const { RabbitAdmin } = require("rabbitmq-admin");

(async () => {
  const admin = RabbitAdmin({ rabbitHost: `http://127.0.0.1:${process.argv[2]}` });
  const seen = {};
  const overview = await admin.getOverview();
  seen.product = overview.management_version;
  seen.nodes = (await admin.getNodes()).map((node) => node.running);
  seen.node = (await admin.getNode((await admin.getNodes())[0].name)).running;
  seen.cluster = (await admin.getClusterName()).name.split("@")[0];
  await admin.getExtensions();

  await admin.createVhost("a/b");
  await admin.setUserPermissions("a/b", "guest", { configure: ".*", write: ".*", read: "^[oq]" });
  seen.reads = (await admin.getUserPermissions("a/b", "guest")).read;
  seen.vhosts = (await admin.listVhosts()).map((vhost) => vhost.name).sort();
  seen.noVhost = await admin.getVhost("none");

  await admin.createExchange("a/b", { name: "orders %", type: "topic", durable: true });
  await admin.createQueue("a/b", "q/1", { durable: true, arguments: { "x-max-length": 10 } });
  await admin.createBinding({ vhost: "a/b", source: "orders %", destination: "q/1", type: "queue", routingKey: "k.#" });
  seen.bindings = (await admin.getQueueBindings("a/b", "q/1")).map((each) => each.routing_key).sort();
  seen.between = (await admin.getBindings({ vhost: "a/b", source: "orders %", destination: "q/1", type: "queue" })).length;
  seen.sources = (await admin.getSourceExchangeBindings("a/b", "orders %")).length;
  seen.exchanges = (await admin.getExchanges("a/b", { name: "ord", pageSize: 5 })).items.map((each) => each.name);
  seen.published = await admin.publishToExchange("a/b", "orders %", {
    properties: { delivery_mode: 2, headers: { shop: 7 } }, routing_key: "k.1", payload: "one", payload_encoding: "string",
  });
  const options = { count: 5, ackMode: "ack_requeue_true", ackmode: "ack_requeue_true", encoding: "auto" };
  seen.messages = (await admin.getMessages("a/b", "q/1", options)).map((each) => [each.payload, each.properties.headers]);
  seen.queue = await admin.getQueue("a/b", "q/1").then((queue) => [queue.durable, queue.arguments]);
  seen.page = await admin.getQueues(null, { page: 1, pageSize: 1 }).then((page) => [page.items.length, page.page_size]);
  seen.definitions = (await admin.getDefinitions("a/b")).queues.map((queue) => queue.name);
  seen.connections = (await admin.getConnections()).items.length;
  seen.consumers = (await admin.getConsumers("a/b")).length;

  const wrong = (error) => [error.constructor.name, error.statusCode];
  seen.missing = await admin.getQueue("a/b", "none").catch(wrong);
  seen.bad = await admin.createQueue("a/b", "q/1", { durable: false }).catch(wrong);
  await admin.deleteQueue("a/b", "q/1", { ifUnused: true });
  await admin.deleteExchange("a/b", "orders %");
  await admin.deleteVhost("a/b");
  seen.left = (await admin.listVhosts()).map((vhost) => vhost.name);
  console.log(JSON.stringify(seen));
})().catch((error) => {
  console.error(error.stack, error.url, error.response && error.response.data);
  process.exit(1);
});
