//! Venice: fabric.
