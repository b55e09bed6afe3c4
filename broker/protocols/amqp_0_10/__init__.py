"""AMQP 0-10: connections and sessions, for the broker and for its client.

In the order in which a message passes through them, from the socket to the model and back:

    assembly            bytes -> frames -> controls and commands with their content
    connection          negotiation, channels, heartbeats: the part common to broker and client
    session             command numbers, completion, replay: the part common to broker and client
    sequence            sets of command numbers
    transfer            a message in its 0-10 form: decoded once, stored as received, changed where the broker must
    server_connection   the broker's side: security, tuning, sessions that outlive their connection
    commands            executes the commands of a client; message_commands, transaction_commands, distributed_commands
                        and declarations
    server_session      the broker's side of a session: its state, and the objects it owns
    deliveries          the deliveries of a session, until they are settled
    subscription        one consumer: its credit, and sending messages to it
    client_connection   the client's side

Nothing here uses a socket, a clock or a file.
"""
