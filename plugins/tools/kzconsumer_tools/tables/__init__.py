"""Results as text. Read `text`."""
