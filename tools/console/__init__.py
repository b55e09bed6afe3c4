"""What all commands share: how they run, what they print, how they reach a broker.

command   exit codes, signals, errors in one line; the options that several commands have
rows      rows under headings, as tables for people and as JSON lines for programs
text      names and other untrusted text, escaped so that it cannot control a terminal
amounts   sizes, times and values as text, and options that take them
progress  a progress bar on standard error
broker    the options of commands that reach a broker, and running on its console
shell     the loop of the two shells, with history, completion and pager
"""
