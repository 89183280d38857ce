"""Updates of a bucket as columns: arrays that all its messages share. On the CPU a few calls handle them all.

The bytes are those that `wire.message` writes and reads one by one, but no object is made for each message.
Only what is certainly right is read here: whatever looks odd is left to `message`, which says what is wrong.
"""
