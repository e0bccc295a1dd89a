//! The CUDA client driver: granted GPUs of other nodes as devices of an unchanged program, which
//! loads it as `libcuda.so.1` and `libnvidia-ml.so.1`.
//!
//! Commands go out without waiting; addresses of device memory are the donor's own. `functions.txt`
//! lists the driver API: what is not served is refused by name.
//!
//! | file | contents |
//! |---|---|
//! | `call`, `names`, `handle`, `tables` | the border to C: codes, names of functions, handles |
//! | `link`, `gates`, `addresses` | the session with a donor, copies on their way, functions of the program that streams call, addresses that no other memory has |
//! | `device`, `context`, `stream` | devices, contexts, streams and events |
//! | `memory`, `rows`, `pool` | memory, copies and fills |
//! | `module`, `link_images`, `library`, `launch`, `occupancy`, `graph` | kernels |
//! | `nvml` | the management library |
#![allow(non_snake_case, reason = "names of the CUDA driver API")]

mod addresses;
mod call;
mod context;
mod device;
mod functions;
mod gates;
mod graph;
mod handle;
mod launch;
mod library;
mod link;
mod link_images;
mod memory;
mod module;
mod names;
mod nvml;
mod occupancy;
mod pool;
mod rows;
mod stream;
mod tables;
