"""Key and value of records become columns. Read `shaping`, then `decoding`."""
