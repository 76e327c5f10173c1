"""A proxy that does to a connection what bad networks do, when a test says so."""

from dibs.testing.proxy.faults import Direction, End, Fault, Match
from dibs.testing.proxy.proxy import FaultProxy

__all__ = ["Direction", "End", "Fault", "FaultProxy", "Match"]
