"""The HTML report of `qstore-analyze`: one self-contained file.

`content` declares the content of a report, as small, already aggregated values, and sorts the queues; `page` renders
the file: totals, findings, tables, and cards with the plots of `charts`. `markup` has HTML elements and numbers with
units. The style sheet and the script, which sorts and filters a table, are part of the file. None of this uses Spark:
`tools.spark.report_content` fills the content.
"""
