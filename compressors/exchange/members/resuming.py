"""States of a fixed group for members, and the other way round: as `LocalSteps.state_dict` returns them."""

import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from ..tensors import to_bytes
from .messages import StateId
from .rounds import IDENTITY, Membership

log = logging.getLogger("taugrad")


def fitting(
    states: Sequence[Mapping[str, Any]], max_members: int | None, *, reshard: bool
) -> Sequence[Mapping[str, Any]]:
    """States as a member loads them, or if `max_members` is None a worker of a fixed group.

    Raises ValueError where they cannot be.
    """
    if max_members is not None:
        return states if _is_of_member(states[0]) else [_member_state(states[0], max_members)]
    if not any(map(_is_of_member, states)):
        return states
    if not reshard:
        raise ValueError("the state of a member: load the states of all of them with reshard=True")
    return _group_states(states)


def _is_of_member(state: Mapping[str, Any]) -> bool:
    return "hello" in state["rounds"]


def _group_states(states: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Members' states as those of all workers of a fixed group, to be loaded with `reshard`.

    Those that are not of the latest round are left out: what they have not sent may have been sent since.
    """
    if not all(map(_is_of_member, states)):
        raise ValueError("states with members and without: all must be of one run")
    rounds = [
        (saved := state["rounds"]["hello"]["state"]) and (saved["round"], saved["ballot"]) for state in states
    ]
    latest = max((number for number in rounds if number), default=None)
    kept = [state for state, number in zip(states, rounds, strict=True) if number == latest]
    kept.sort(key=lambda state: state["rounds"]["hello"]["previous"])  # ranks are the same everywhere
    if len(kept) < len(states):
        log.warning(
            "the states of %d members are older than round %s: what these had not sent is lost",
            len(states) - len(kept), latest and latest[0],
        )  # fmt: skip
    return [_of_worker(state, rank, len(kept)) for rank, state in enumerate(kept)]


def _of_worker(state: Mapping[str, Any], rank: int, workers: int) -> dict[str, Any]:
    rounds = state["rounds"]
    _require_equal_weights(state)
    if len(rounds["fragments"]) != 1:
        raise ValueError("the states are of members with fragments: these go on as members alone")
    (saved,) = rounds["fragments"]
    unsent = saved["unsent"]
    part = {"squares": [0.0 for _ in state["own"]], "examples": 0.0, "weight": 1.0, "at_sending": []}
    fragment = {
        "parts": {str(rank): part},
        "in_flight": None,
        "unsent": {**unsent, "workers": workers, "ranks": {str(rank): unsent["ranks"]["0"]}},
    }
    moved = torch.split(saved["pending"], [weights.numel() for weights in state["own"].values()])
    return {
        **state,
        "rank": rank,
        "workers": workers,
        "shared": {**state["shared"], "unit": None},
        "rounds": {
            "workers": workers,
            "progress": rounds["progress"],
            "fragments": [fragment],
            "moved": moved,
        },
    }


def _member_state(state: Mapping[str, Any], max_members: int) -> dict[str, Any]:
    """The state of one worker of a fixed group as that of a member; what it has not sent counts once."""
    shared, rank, workers = state["shared"], state["rank"], state["workers"]
    if len(shared["fragments"]) != 1 or state["rounds"]["fragments"][0]["in_flight"] is not None:
        raise ValueError("the state is of a group with fragments or a delay: it goes on as a group alone")
    _require_equal_weights(state)
    (fragment,) = state["rounds"]["fragments"]
    done, unsent = int(shared["fragments"][0]["done"]), fragment["unsent"]
    digest = f"{zlib.crc32(to_bytes(state['agreed'].values()).data):08x}"
    hello = dict.fromkeys(IDENTITY, 0) | {
        "run": "",
        "state": StateId(round=done, ballot=0, digest=digest).model_dump(),
        "shards": (),
        "origin": f"rank {rank} of {workers}, round {done}",
    }
    part = {
        "unsent": {**unsent, "workers": 1, "ranks": {"0": unsent["ranks"][str(rank)]}},
        "pending": None,
        "trains": True,
        "examples": 0.0,
        "weight": 1.0,
        "workers": workers,
    }
    rounds = {
        "progress": state["rounds"]["progress"],
        "fragments": [part],
        "membership": asdict(Membership(round=done, members=workers)),
        "hello": hello,
    }
    return {**state, "rank": 0, "workers": max_members, "rounds": rounds, "traffic": None}


def _require_equal_weights(state: Mapping[str, Any]) -> None:
    if state["weighted"]:
        raise ValueError(
            "the state is of workers that weigh by examples: with members or without, it goes on as it was"
        )
