"""The demo. Read `scenario`."""
