"""What is sent, as bytes: updates, their forms, codecs and messages."""
