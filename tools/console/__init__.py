"""Output shared by all commands: safe text, tables, progress bars and JSON lines.

text        names and other untrusted text, escaped so that it cannot control a terminal
tables      rows under titles: framed on a terminal, plain aligned columns elsewhere
progress    a progress bar on standard error
json_lines  one JSON object per line
"""
