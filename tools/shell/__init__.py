"""The shell of `qpid-tool`.

identities  numbers for objects, so that they can be named shortly
arguments   the words of a command as conditions of a query and as arguments of a method
show        objects, schemas and agents as text
commands    the commands
prompt      the loop: history and completion
"""
