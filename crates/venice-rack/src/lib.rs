//! Venice: rack.
