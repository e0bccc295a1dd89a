//! Hand-computed traces.
