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
/// Stand-in.
#[derive(Debug, thiserror::Error)]
#[error("region")]
pub struct RegionError;
/// Stand-in.
#[derive(Debug)]
pub struct Region;
impl Region {
    /// Stand-in.
    pub fn open(
        _access: &venice_rack::types::ServiceAccess,
        _port: Option<u16>,
        _bytes: u64,
        _within: std::time::Duration,
    ) -> Result<Self, RegionError> {
        Ok(Self)
    }
    /// Stand-in.
    pub fn read(&self, _offset: u64, _into: &mut [u8]) -> Result<(), RegionError> {
        Ok(())
    }
    /// Stand-in.
    pub fn write(&self, _offset: u64, _from: &[u8]) -> Result<(), RegionError> {
        Ok(())
    }
    /// Stand-in.
    pub fn mapped(&self, _offset: u64, _len: u64) -> Option<*mut u8> {
        None
    }
}
