//! Options of the service, as text in the spec of its host.

use serde::{Deserialize, Serialize};

/// A device and how much of it is granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaOptions {
    /// UUID of the device.
    pub uuid: [u8; 16],
    /// Memory that the recipient may allocate, in bytes.
    pub bytes: u64,
}

impl CudaOptions {
    /// Parses the text of a spec.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("options of the service: {error}"))
    }

    /// Returns the text for a spec.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }
}
