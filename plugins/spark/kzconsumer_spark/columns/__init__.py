"""From bytes to columns: decoding of key and value, `where` and `select`, and what becomes of records that are bad."""
