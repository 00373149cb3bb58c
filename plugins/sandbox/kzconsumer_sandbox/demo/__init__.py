"""`kzconsumer demo`: members of a group, one of which is killed, and the count of what they wrote.

Read `scenario`: the order of events, what fails the demo. `members`: their processes, and the producer. `board`: rows
of one moment, which `screen` shows, as the final verdict. `observation`: what is seen from outside, owners and offsets
in ZooKeeper, messages in the files.
"""
