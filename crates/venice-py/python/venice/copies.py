"""How the copies of borrowed memory are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Copies:
    """How the copies of borrowed memory are. With one copy a node that dies takes with it what it
    holds; with more nothing is lost, and lost copies are built anew on other nodes."""

    copies: int
    """Of each slab, that there are to be."""
    slabs: int
    """Slabs there are."""
    short_slabs: int
    """Slabs that lack a copy now."""
    lost_slabs: int
    """Slabs that have none any more."""
    rebuilt: int
    """Copies that were built anew."""
    lost_donors: list[str]
    """Nodes that were lost."""
