"""`kzconsumer demo`: members of a group, one of which is killed, and the count of what they wrote. Read `scenario`.

`members`: their processes, and the producer. `board`: the state at one moment, counted; `screen` shows it and judges.
"""
