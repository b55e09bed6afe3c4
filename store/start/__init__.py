"""Starting a store: a plan for each journal, and its application."""
