"""Decoding of key and value into columns, `where` and `select`, and the handling of bad records."""
