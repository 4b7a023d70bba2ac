"""What models write, taken apart as it comes: one file a call format over one cursor, one transcript and one scanner.

Nothing here raises on any text, looks ahead further than it must, or reads a character a bounded number of times too many.
`daemon/chat/parsing.py` is the door; nobody else imports these files.
"""
