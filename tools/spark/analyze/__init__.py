"""The work of `qstore-analyze`: the pipeline over a fleet, step by step, each step's result a table in Parquet.

scale         whether there is little to read, and how Spark is set up then
session       a Spark session for a command: local unless told otherwise, and quiet
request       what is asked for, and where the results go
tables        stores, publishers' logs and earlier results as DataFrames, read and written
run           the steps
progress      how far Spark is
summary       numbers for people and programs
report        what the page with plots says, from rows that report_rows takes from the results
"""
