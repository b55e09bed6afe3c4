"""The HTML report of `qstore-analyze`: one self-contained file.

`content` declares the content of a report, as small, already aggregated values; `ranking` sorts the queues; `page`
renders the file from `tables`, `findings`, `cards` (one queue with its plots: `charts`, drawn with `scales` and
`plots`), `markup` (HTML elements), `text` (numbers with units), the style sheet, and the script, which sorts and
filters a table. None of this uses Spark: `tools.spark.analyze` fills the content.
"""
