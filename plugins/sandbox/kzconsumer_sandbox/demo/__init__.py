"""`kzconsumer demo`: members of a group, one of which is killed, and the count of what they wrote. Read `scenario`."""
