"""Members that come and go: who is in a round is decided by a coordinator, over what receivers hold."""
