//! Venice: agent.
