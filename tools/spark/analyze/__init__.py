"""The work of `qstore-analyze`: the pipeline over a fleet, step by step, each result a Parquet table.

scale         whether the amount of data is small, and Spark's settings in that case
session       a quiet Spark session for a command, local by default
request       what is requested, and where the results go
stores        by store, in the tasks of Spark: what has a row for each record or message
tables        stores, publishers' logs and earlier results as DataFrames, read and written
run           the steps
progress      Spark's progress
summary       the totals
report        the content of the HTML report, from rows that report_rows selects from the results
"""
