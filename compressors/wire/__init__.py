"""What is sent, as bytes: updates, their forms, codecs, messages, and their exchange."""
