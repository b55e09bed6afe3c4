"""AMQP 1.0: the type system, frames, described types, and the sections of messages.

A value is a constructor and its bytes, big endian. A constructor is one byte, whose high nibble gives the width:

    0x4_ none       0x5_ 1 byte      0x6_ 2      0x7_ 4      0x8_ 8      0x9_ 16
    0xa_ u8 size, then that many bytes               0xb_ u32 size, ...
    0xc_ u8 size, u8 count, items                    0xd_ u32 size, u32 count, ...
    0xe_ u8 size, u8 count, constructor, values      0xf_ u32 size, u32 count, ...
    0x00 a descriptor (a whole value), then the constructor of the described value

Modules: `values` (read and write), `neutral` (the same as values of any protocol), `frames`, `composites`
(performatives and the other described types, as one table), `sections`.

Source: the AMQP 1.0 specification as XML, its parts "types", "transport", "messaging", "transactions" and "security".
"""
