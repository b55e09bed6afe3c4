"""The records that brokers put into a store: topology, messages and transaction ids, as qpidd encodes them.

`README.md` in this folder documents every byte: messages in 1, field tables in 2, transaction ids in 3, queues,
exchanges, bindings, links and other objects in 4.

Modules: `messages` (the 0-10 message), `amqp_1_0_messages`, `message_header` (the decoded form of both), `topology`
(everything that is not a message), `xids`.
"""
