//! libibverbs, loaded on first use: the binary runs on machines without it.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};

use super::VerbsError;
use super::abi::{
    CompChannel, Context, Cq, Device, DeviceAttr, Gid, GidEntry, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr,
};

/// Soname of every rdma-core since its first release.
const SONAME: &str = "libibverbs.so.1";

/// Declares [`Library`] and its loader: field, symbol, arguments, result.
macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of the library that are symbols of it; the others are reached through `ops` of
        /// an open device. `ibv_*(3)` documents them.
        #[derive(Debug)]
        pub struct Library {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        fn load() -> Result<Library, String> {
            // SAFETY: the library's constructors do nothing but register its providers.
            let library = unsafe {
                libloading::os::unix::Library::open(Some(SONAME), RTLD_NOW | RTLD_LOCAL)
            };
            let library = library.map_err(|error| error.to_string())?;
            let loaded = Library {
                // SAFETY: each has the type that infiniband/verbs.h declares for its symbol.
                $($field: unsafe { *library.get($symbol).map_err(|error| error.to_string())? },)*
            };
            // Never unloaded: its functions are called until the process ends.
            std::mem::forget(library);
            Ok(loaded)
        }
    };
}

functions! {
    /// `ibv_get_device_list`
    get_device_list = b"ibv_get_device_list\0" (*mut c_int) -> *mut *mut Device;
    /// `ibv_free_device_list`
    free_device_list = b"ibv_free_device_list\0" (*mut *mut Device);
    /// `ibv_get_device_name`
    get_device_name = b"ibv_get_device_name\0" (*mut Device) -> *const c_char;
    /// `ibv_open_device`
    open_device = b"ibv_open_device\0" (*mut Device) -> *mut Context;
    /// `ibv_close_device`
    close_device = b"ibv_close_device\0" (*mut Context) -> c_int;
    /// `ibv_query_device`
    query_device = b"ibv_query_device\0" (*mut Context, *mut DeviceAttr) -> c_int;
    /// `ibv_query_port`
    query_port = b"ibv_query_port\0" (*mut Context, u8, *mut PortAttr) -> c_int;
    /// `ibv_query_gid`
    query_gid = b"ibv_query_gid\0" (*mut Context, u8, c_int, *mut Gid) -> c_int;
    /// `ibv_query_gid_ex`, since rdma-core 33
    query_gid_ex = b"_ibv_query_gid_ex\0" (*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    /// `ibv_alloc_pd`
    alloc_pd = b"ibv_alloc_pd\0" (*mut Context) -> *mut Pd;
    /// `ibv_dealloc_pd`
    dealloc_pd = b"ibv_dealloc_pd\0" (*mut Pd) -> c_int;
    /// `ibv_reg_mr_iova`
    reg_mr_iova = b"ibv_reg_mr_iova\0" (*mut Pd, *mut c_void, usize, u64, c_int) -> *mut Mr;
    /// `ibv_dereg_mr`
    dereg_mr = b"ibv_dereg_mr\0" (*mut Mr) -> c_int;
    /// `ibv_create_comp_channel`
    create_comp_channel = b"ibv_create_comp_channel\0" (*mut Context) -> *mut CompChannel;
    /// `ibv_destroy_comp_channel`
    destroy_comp_channel = b"ibv_destroy_comp_channel\0" (*mut CompChannel) -> c_int;
    /// `ibv_create_cq`
    create_cq = b"ibv_create_cq\0" (*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    /// `ibv_destroy_cq`
    destroy_cq = b"ibv_destroy_cq\0" (*mut Cq) -> c_int;
    /// `ibv_get_cq_event`
    get_cq_event = b"ibv_get_cq_event\0" (*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    /// `ibv_ack_cq_events`
    ack_cq_events = b"ibv_ack_cq_events\0" (*mut Cq, c_uint);
    /// `ibv_create_qp`
    create_qp = b"ibv_create_qp\0" (*mut Pd, *mut QpInitAttr) -> *mut Qp;
    /// `ibv_modify_qp`
    modify_qp = b"ibv_modify_qp\0" (*mut Qp, *mut QpAttr, c_int) -> c_int;
    /// `ibv_destroy_qp`
    destroy_qp = b"ibv_destroy_qp\0" (*mut Qp) -> c_int;
}

/// Returns the library, loaded at the first call.
pub fn library() -> Result<&'static Library, VerbsError> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(load).as_ref();
    loaded.map_err(|reason| VerbsError::Library { reason: reason.clone() })
}
