//! The Python package's native half, `venice._venice`: thin classes over `venice-client`. The
//! public package is in `python/venice`.
//!
//! The interpreter's lock is released while memory is borrowed, read or written.

mod accel;
mod buffers;
mod cache;
mod channel;
mod copies;
mod device;
mod errors;
mod handle;
mod memory;
mod paged;
mod rack;
mod sim;
mod transfer;

use pyo3::prelude::*;

#[pymodule]
mod _venice {
    #[pymodule_export]
    use super::accel::{Kernel, Pool};
    #[pymodule_export]
    use super::cache::ObjectCache;
    #[pymodule_export]
    use super::channel::{
        Channel, ChannelOptions, LentRegion, Listener, RemoteRegion, new_channel_key,
    };
    #[pymodule_export]
    use super::device::{Device, Service};
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::paged::{Paged, Region};
    #[pymodule_export]
    use super::rack::{Options, Rack, connect};
    #[pymodule_export]
    use super::sim::{Experiment, sim_list, sim_values};
    #[pymodule_export]
    use super::transfer::Claimed;
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
