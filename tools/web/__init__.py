"""The console's process: RabbitMQ's management API and Prometheus metrics for a broker, beside the broker.

server      the HTTP server: logins, limits, TLS, headers, static pages
resources   the table of paths, what each answers, and the OpenAPI document
rows        a broker's objects as RabbitMQ describes them
collector   what the broker is and was: objects over QMF, rates, history on disk
amqp        operations on queues, exchanges and messages, as the user of a request
prometheus  metrics
"""
