//! Stand-in.
use venice_service::HostContext;
/// Stand-in.
#[derive(Debug)]
pub struct RegionHost {
    bytes: u64,
}
impl RegionHost {
    /// Stand-in.
    pub fn serve(_context: &HostContext<'_>, bytes: u64) -> Result<Self, String> {
        Ok(Self { bytes })
    }
    /// Stand-in.
    pub fn base(&self) -> *mut u8 {
        std::ptr::null_mut()
    }
    /// Stand-in.
    pub fn len_bytes(&self) -> u64 {
        self.bytes
    }
    /// Stand-in.
    pub fn udp_port(&self) -> Option<u16> {
        None
    }
    /// Stand-in.
    pub fn discard(&self, _offset: u64, _bytes: u64) {}
}
