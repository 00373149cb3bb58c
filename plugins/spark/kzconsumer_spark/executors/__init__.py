"""Ranges that Spark's executors fetch themselves: the data source, and what a task needs to reach the brokers.

Executors import this package, so it needs PySpark, pyarrow and kzconsumer alone.
"""
