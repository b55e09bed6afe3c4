"""AMQP 0-10: connections and sessions, for the broker and for its client.

They add to the engine of all protocols (`broker.protocols`), in the order in which a message passes through them, from
the socket to the model and back:

    assembly            its frames, for the assembler of the engine; and large content -> frames
    connection          controls: the part common to broker and client
    session             command numbers, completion, replay: the part common to broker and client
    server_connection   the broker's side: tuning, attaching sessions
    session_registry    sessions that outlive their connection, and interrupted messages
    publishing          decodes the header of a transfer, but only the fields that routing needs
    message             a message in its 0-10 form: decoded once, stored as received, changed where the broker must
    commands            executes the commands of a client; transactions has those of classes tx and dtx
    server_session      the broker's side of a session: its state, and the objects it owns
    subscription        one consumer: its credit, sending messages to it, and deliveries until they are settled
    client_connection   the client's side

Nothing here uses a socket, a clock or a file.
"""
