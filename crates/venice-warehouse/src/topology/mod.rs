//! Which switch port leads where.
