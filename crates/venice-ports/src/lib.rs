//! Venice: ports.
