"""The report of `qstore-analyze`: one HTML file, readable on its own.

`content` declares what a report says, as small values that are already aggregated; `ranking` decides which queues come
first; `page` makes the file, out of `tables`, `charts` (a queue's plots, on the axes and marks of `plots`), `text`
(hostile names made visible, numbers with units) and `assets` (the style sheet and the script, which sorts a table).
Nothing here knows of Spark.
"""
