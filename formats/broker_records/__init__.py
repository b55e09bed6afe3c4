"""What brokers put into a store: wiring, messages and transaction ids, as qpidd encodes them.

All numbers are big endian, but for the counter of a local transaction id.

    message, 0-10    u32 header size | method frame | header frame | content
    message, 1.0     u32 header size | u32 0 | message sections as received
    queue            str8 name | map arguments | [str8 alternate exchange | [str8 owner | [i8 auto-delete]]]
    exchange         str8 name | u8 durable | str8 type | map arguments | [str8 alternate exchange | [i8 auto-delete]]
    binding          u64 queue id | str8 queue name | str8 binding key | map arguments
    link, bridge     str8 kind | fields, see `wiring`
    general object   str8 kind | str16 name | map properties
    xid              0-10 xid struct, or u64 counter (little endian) and a UUID for a local transaction

Modules: `messages` (the 0-10 message), `amqp_1_0_messages`, `message_header` (what both decode to), `wiring`
(all that is not a message), `xids`.

Source: formats page, sections 8.1, 9 and 10.
"""
