"""Selectors: SQL-92 conditions over the headers of a message, as JMS defines them.

The rest of the broker uses `selector`: the compiled form, and its cache. `grammar` parses a text to `nodes`, and is
imported at the first selector. `candidate` is a message as a selector sees it.
"""
