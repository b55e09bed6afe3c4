"""The parts of `qstore-dump`.

`dump` decides what is shown, in which order; `objects` and `messages` convert each item to a JSON object; `tables` and
`tools.console.json_lines` print these objects; `selection` holds the filters.
"""
