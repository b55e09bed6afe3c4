"""What `qstore-dump` is made of.

`dump` decides what is shown, in which order; `objects` and `messages` make one JSON object of each thing; `tables` and
`tools.console.json_lines` are the two ways of printing them; `selection` holds the filters.
"""
