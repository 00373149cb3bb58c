"""From queue to application: what is handed out and acknowledged. Read `cursor` first.

`chunk_queue`: what waits, its bounds in bytes, and whose turn it is. What is in hand, pauses, and the limit of what is
unacknowledged: `cursor`.
"""
