//! The CUDA client driver: granted GPUs of other nodes as devices of an unchanged program, which
//! loads it as `libcuda.so.1` and `libnvidia-ml.so.1`.
//!
//! Commands go out without waiting; addresses of device memory are the donor's own. `functions.txt`
//! lists the driver API: what is not served is refused by name.
//!
//! | file | contents |
//! |---|---|
//! | `call`, `names`, `handle` | the border to C: codes, names of functions, handles |
//! | `link` | the session with a donor, copies on their way |
//! | `device`, `context`, `memory`, `module`, `stream` | the driver API |
//! | `nvml` | the management library |
#![allow(non_snake_case, reason = "names of the CUDA driver API")]

mod call;
mod context;
mod device;
mod functions;
mod handle;
mod link;
mod memory;
mod module;
mod names;
mod nvml;
mod stream;
mod tables;
