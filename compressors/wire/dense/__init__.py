"""Updates of every element of several parameters, whose values share arrays; on the CPU in a few calls.

The bytes are those that `wire.message` writes and reads one by one, but no object is made for each message.
Only what is certainly right is read here: whatever looks odd is left to `message`, which says what is wrong.
"""
