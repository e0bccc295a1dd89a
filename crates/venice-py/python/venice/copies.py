"""The copies of borrowed memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Copies:
    """The state of the copies of borrowed memory. With one copy a node that dies loses what it
    holds; with more nothing is lost, and lost copies are rebuilt on other nodes."""

    copies: int
    """Required copies of each slab."""
    slabs: int
    """Slabs in all."""
    short_slabs: int
    """Slabs that lack a copy now."""
    lost_slabs: int
    """Slabs without any copy."""
    rebuilt: int
    """Copies rebuilt."""
    lost_donors: list[str]
    """Lost nodes."""
