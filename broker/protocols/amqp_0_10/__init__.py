"""AMQP 0-10: connections and sessions, for the broker and for its client.

Its modules extend the common engine (`broker.protocols`). In the order in which a message passes through them, from the
socket to the model and back:

    assembly            0-10 frames for the engine's assembler; and large content -> frames
    connection          controls, common to broker and client
    session             command numbers, completion, replay, common to broker and client
    server_connection   the broker's side: tuning, attaching sessions
    session_registry    sessions that outlive their connection, and interrupted messages
    publishing          decodes the header of a transfer, but only the fields that routing needs
    message             a message in its 0-10 form: decoded once, stored as received except fields that the broker sets
    commands            executes the commands of a client; transactions has those of classes tx and dtx
    server_session      the broker's side of a session: its state, and the objects it owns
    subscription        one consumer: its credit, sending messages to it, and deliveries until they are settled
    client_connection   the client's side

Nothing here uses a socket, a clock or a file.
"""
