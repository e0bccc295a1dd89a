//! Requests for devices.

use std::time::Instant;

use venice_control::client::{Access, MonitorClient};
use venice_control::{DevicePlan, DeviceRequest, Grant, ResourceKind};
use venice_wire::ByteSize;

use crate::error::RecipientError;
use crate::loan::{random_word, recipient_name, runtime};
use crate::waiting::{QueuedRequest, Told, Waiting, ask_in_line};

/// A device request.
#[derive(Clone, Debug)]
pub struct DeviceWish {
    /// The kind: an accelerator, a network card, or storage.
    pub kind: ResourceKind,
    /// Bytes of storage, rounded up to whole MiB; the least size of an accelerator.
    pub bytes: u64,
    /// Capabilities the device must all have.
    pub capabilities: Vec<String>,
    /// The donors to use; empty: any.
    pub donors: Vec<String>,
    /// Its queueing options.
    pub waiting: Waiting,
    /// The purpose, for the tables.
    pub purpose: String,
}

impl DeviceWish {
    fn request(&self) -> Result<DeviceRequest, RecipientError> {
        Ok(DeviceRequest {
            client_id: u128::from(random_word()?) << 64 | u128::from(random_word()?),
            recipient: recipient_name(),
            kind: self.kind,
            bytes: ByteSize(self.bytes),
            capabilities: self.capabilities.clone(),
            donors: self.donors.clone(),
            purpose: self.purpose.clone(),
            queueing: self.waiting.queueing(),
        })
    }
}

/// Returns which device [`Held::device`](crate::Held::device) would get at this moment, and the
/// reasons against the others. Nothing is granted.
///
/// # Errors
/// [`RecipientError`]: the Monitor Node does not answer, or the request is invalid.
pub fn plan_device(access: &Access, wish: &DeviceWish) -> Result<DevicePlan, RecipientError> {
    let request = wish.request()?;
    runtime()?
        .block_on(async { Ok(MonitorClient::connect(access).await?.plan_device(request).await?) })
}

/// Requests a device. Returns its grant, and a time before the request.
pub(crate) fn ask_for_device(
    access: &Access,
    wish: &DeviceWish,
    told: &mut Told<'_>,
) -> Result<(Vec<Grant>, Instant), RecipientError> {
    let request = wish.request()?;
    let asked = Instant::now();
    let granted = runtime()?.block_on(async {
        let mut client = MonitorClient::connect(access).await?;
        match wish.waiting.at_most.is_zero() {
            true => Ok(vec![client.request_device(request).await?]),
            false => ask_in_line(&mut client, QueuedRequest::Device(request), told).await,
        }
    });
    Ok((granted?, asked))
}
