"""AMQP 0-9-1: field tables, properties, methods and frames, with the extensions that RabbitMQ's clients rely on.

Numbers are big endian. Modules, in the order in which they build on each other:

    codes        reply codes, and which of them close the connection; the errors of this format
    tables       field tables and other fields, to typed values (`formats.values`) and back
    properties   the content header: size of the body, and the properties of a message
    methods      every method as one table, with what differs in AMQP 0-9 and 0-8; encoded and decoded
    frames       frames, which carry all of this

Sources: the AMQP 0-9-1 specification as XML; RabbitMQ, "Protocol extensions" and "AMQP 0-9-1 errata".
"""
