"""The member's side: options, the worker's life. Read `sink`."""
