"""Posts between the workers of one process, which run in lockstep."""

from collections.abc import Sequence

from ..rounds import Payload, Received, Traffic
from .moves import Carrier, Course, Move, Moves, Post, T, check, count


class SimulatedCarrier(Carrier):
    """Passes on in memory what real workers would send."""

    def run(self, sides: Sequence[Moves[T]], courses: Sequence[Course], traffic: Traffic) -> list[T]:
        """See `Carrier.run`; no time passes on the way."""
        posted: dict[int, list[Post]] = {}
        answers: list[Received | None] = [None] * len(sides)
        while True:
            moves: list[Move] = []
            results: list[T] = []
            for side, answer in zip(sides, answers, strict=True):
                try:
                    moves.append(side.send(answer))
                except StopIteration as end:
                    results.append(end.value)
            if not moves:
                assert not posted, "what is posted is fetched"
                return results
            assert len(moves) == len(sides), "every worker has as many moves as the others"
            posts = [move for move in moves if isinstance(move, Post)]
            if posts:
                for rank, post in enumerate(posts):
                    check(post, rank)
                count(traffic, posts[0])
                posted[posts[0].channel] = posts
                answers = [None] * len(sides)
            else:
                arrived = posted.pop(moves[0].channel)
                answers = [_arriving(arrived, rank) for rank in range(len(sides))]


def _arriving(posts: Sequence[Post], rank: int) -> Received:
    found: dict[int, Payload] = {}
    for sender, post in enumerate(posts):
        if sender != rank and post.lengths[sender, rank]:
            found[sender] = post.payloads[rank]
    return found
