//! Swap devices on kernels that have them.

mod guest;
