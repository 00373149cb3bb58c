"""The destination `iceberg`: ranges as data files of an Iceberg table, by the package `pyiceberg`."""
