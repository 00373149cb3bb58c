"""Printing records: `kzconsumer consume`."""
