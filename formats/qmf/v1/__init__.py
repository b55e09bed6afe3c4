"""QMF version 1: binary messages."""
