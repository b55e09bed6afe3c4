"""What `qstore-dump` is made of.

`dump` decides what is shown, in which order; `objects` and `messages` make one JSON object of each thing; `json_lines`
and `tables` are the two ways of printing them; `selection` holds the filters.
"""
