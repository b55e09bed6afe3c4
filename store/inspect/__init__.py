"""Reading a store that is not running: its kind, its content, how full it is, and its damage."""
