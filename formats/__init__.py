"""Bytes to values and back: wire protocols and on-disk layouts.

Pure functions and value types. Nothing here opens a file, reads a clock or keeps state; the rooms below
(`store`, `broker`, `tools`) supply the bytes.
"""
