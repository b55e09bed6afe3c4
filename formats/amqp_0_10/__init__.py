"""AMQP 0-10: the types, the field tables and the property structs.

A value is encoded as a one-byte type code and its bytes, big endian. The high nibble of the code gives the width,
so a value with an undefined code can still be skipped, stored and written back:

    0x0_ 1 byte      0x4_ 16 bytes      0x8_ u8 size, then that many bytes      0xc_ 5 bytes
    0x1_ 2 bytes     0x5_ 32 bytes      0x9_ u16 size, then ...                 0xd_ 9 bytes
    0x2_ 4 bytes     0x6_ 64 bytes      0xa_ u32 size, then ...                 0xf_ none
    0x3_ 8 bytes     0x7_ 128 bytes     0xb_, 0xe_ not assigned: refused

Modules, in the order in which they build on each other:

    types     the table of all types, the codec of each that contains no others, and the error of this format
    maps      map, list, array: values that keep their type codes, decoded and encoded; faster decoders without types
    structs   packed structs (delivery-properties, message-properties, ...) as tables; writers and readers of any of
              them, and fast readers for message headers, derived from them
    codes     enumerations: error codes, modes, ...
    commands  every control and command as one table; encoded and decoded
    frames    frames, which carry all of this

Sources: the AMQP 0-10 specification as XML (types, structs, classes, codes); formats/broker_records/README.md, 1 and 2.
"""
