"""Selectors: SQL-92 conditions over the headers of a message, as JMS defines them.

`selector` is what the rest of the broker uses: the compiled form, and its cache. `grammar` makes `nodes` of a text, and
is imported at the first selector. `candidate` is a message as a selector sees it.
"""
