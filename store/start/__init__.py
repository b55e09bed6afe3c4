"""Starting a store: a plan of what each journal needs, and its application."""
