"""`kzconsumer demo`: members of a group, one of which is killed, and the count of what they wrote.

Read `scenario`: the order of events, what fails the demo. `members`: their processes, and the producer. `board`: rows
of one moment, which `screen` shows, as the final verdict. `demo_group` reads owners and offsets in ZooKeeper, and waits
until others have taken over; `file_count` counts what is in the files.
"""
