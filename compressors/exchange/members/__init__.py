"""Members that come and go: who is in a round is decided by a coordinator, over what receivers hold.

`decisions` (the coordinator) and `member` are state machines; `messages` is what they tell each other.
`server`, `session` and `sockets` connect them. `rounds` is what a training does, `fragment` and `moments`
what it keeps, `resuming` what states need, and `island` a sharded model as one member.
"""
