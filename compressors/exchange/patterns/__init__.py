"""Exchange patterns: who sends what to whom, so that every worker ends with the same mean."""

from .allgather import AllGather
from .base import Pattern, Setting, Spent
from .hierarchical import Hierarchical
from .ring import Ring
from .sharded import Sharded

__all__ = ["AllGather", "Hierarchical", "Pattern", "Ring", "Setting", "Sharded", "Spent"]
