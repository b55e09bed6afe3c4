"""Importing topology and messages into a store that is not running: all of it, or nothing."""
