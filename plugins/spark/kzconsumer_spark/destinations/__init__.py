"""Tables that take each range once. Read `delta_table`."""
