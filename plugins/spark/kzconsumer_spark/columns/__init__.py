"""Key and value become columns. Read `shaping`."""
