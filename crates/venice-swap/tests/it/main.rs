//! Swap devices on kernels that have them.

mod in_guest;
