"""The report of `qstore-analyze`: one HTML file, readable on its own.

`content` declares what a report says, as small values that are already aggregated; `ranking` decides which queues come
first; `page` makes the file, out of `tables`, `findings`, `cards` (a queue with its plots: `charts`, on the axes and
marks of `scales` and `plots`), `markup` (elements), `text` (hostile names made visible, numbers with units), the style
sheet, and the script, which sorts a table. Nothing here knows of Spark: `tools.spark.analyze` fills the content.
"""
