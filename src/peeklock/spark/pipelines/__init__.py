"""Whole pipelines on the data source: functions over DataFrames, for the command line, a cluster or a notebook."""
