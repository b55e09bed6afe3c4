"""The options of `qpidd`: what there is, where it may be said, and what it means.

Modules, in the order in which they build on each other:

    option          what an option is, and what can be wrong with it
    table           the options of this broker
    table_others    those of qpidd's that this broker does not have: accepted, or refused
    lookup          all options, by name, alias and letter
    command_line    from words to what was given
    config_file     from a file's lines, likewise
    environment     from QPID_… variables, likewise
    sources         the three together: which comes before which
    values          what was given, with its meaning
    help            what --help shows
"""
