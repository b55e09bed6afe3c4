"""AMQP 0-10: what a connection and a session are, for the broker and for its client.

In the order of a message's way, from the socket to the model and back:

    assembly            bytes -> frames -> controls and commands with their content
    connection          negotiation, channels, heartbeats; what broker and client have in common
    session             command numbers, completion, replay: what broker and client have in common
    sequence            sets of command numbers
    transfer            a message as 0-10 carries it: read once, kept as it came, changed where the broker must
    server_connection   the broker's side: security, tuning, sessions that outlive their connection
    commands            what each command of a client does; message_commands, transaction_commands and declarations
    server_session      the broker's side of a session: its state, and what it owns
    deliveries          what was delivered in a session, until it is settled
    subscription        one consumer: its credit, and how messages go out to it
    client_connection   the client's side

Nothing here touches a socket, a clock or a file.
"""
