"""The options of `qpidd`: their table, their sources and their values.

Modules, in the order in which they build on each other:

    option          the declaration of an option, and its errors
    table           the options of this broker
    table_security  those of authentication and encryption
    table_others    options of qpidd that this broker does not support: ignored or refused
    lookup          all options by name, alias and letter
    command_line    parses the command line
    config_file     parses the configuration file
    environment     reads the QPID_… variables
    sources         combines the three by precedence
    values          the typed values of the options
    help            the text of --help
"""
