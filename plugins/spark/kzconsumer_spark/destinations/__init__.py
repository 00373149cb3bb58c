"""Tables, and functions, that take each range once. Read `delta_table`, then `delta_log`."""
