"""What the processes of a job send to each other: messages, mailboxes, a user's settings, and the translation between
the words of engine and coordinator. Plain data, no Ray.

Everybody in ``actors`` may import it.
"""
