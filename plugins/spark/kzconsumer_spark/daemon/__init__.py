"""The member's side: options, spool, the worker's life. Read `sink`."""
