//! Venice: monitor.
