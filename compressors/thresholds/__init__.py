"""Threshold policies: how tau is chosen, and changes during a run; a file each, fields and work."""

from ..fields import POLICIES
from .allocate import AllocatedTau
from .density import DensityTau
from .dl4j import Dl4jTau
from .layers import LayeredTau
from .schedule import ScheduledTau
from .sidco import FittedTau

POLICIES.add_builtin(ScheduledTau, DensityTau, FittedTau, Dl4jTau, AllocatedTau, LayeredTau)
