"""What all commands show people and programs: safe text, tables, progress bars, and JSON lines.

text        names and other text from anyone, so that no terminal obeys it
tables      rows under titles: framed on a terminal, plain aligned columns elsewhere
progress    a bar on standard error
json_lines  one JSON object a line
"""
