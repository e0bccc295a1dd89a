//! Options of the service, as text in the spec of its host.

use opencl_sys::{cl_device_id, cl_platform_id};
use serde::{Deserialize, Serialize};

use super::found::{OpenClDevice, device_at};
use super::library::{Library, OpenClError};

/// A device and how much of it is granted. Inside a host other platforms may be missing, so that a
/// device is named by its place in its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenClOptions {
    /// Name of the platform.
    pub platform: String,
    /// Place among the devices of platforms of this name, from 0.
    pub place: usize,
    /// Memory that the recipient may allocate, in bytes.
    pub bytes: u64,
}

impl OpenClOptions {
    /// Returns the options of a device of which `bytes` are granted.
    pub fn new(device: &OpenClDevice, bytes: u64) -> Self {
        Self { platform: device.platform.clone(), place: device.place, bytes }
    }

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

    /// Finds the device; `None`: it is not there.
    ///
    /// # Errors
    /// The errors of [`super::found::devices`].
    pub fn find(
        &self,
        library: &Library,
    ) -> Result<Option<(cl_platform_id, cl_device_id)>, OpenClError> {
        device_at(library, &self.platform, self.place)
    }
}
