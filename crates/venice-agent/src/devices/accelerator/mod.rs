//! GPUs and other accelerators, in families that differ by how they are named and served.

mod cuda;
mod emulated;
mod opencl;
mod real;

use venice_control::{ResourceKind, ResourceSpec};
use venice_service::{HostSpec, ServiceSecret};
use venice_wire::ByteSize;

use super::class::{Candidate, DeviceClass};
use super::host::Host;
use super::identity::Identity;
use super::offer::Offer;

pub(super) use real::pci_addresses;

/// Accelerators that are named and served in one way.
trait Family: DeviceClass {
    /// True for the names of its devices.
    fn has(&self, address: &str) -> bool;
}

/// The families.
const FAMILIES: [&dyn Family; 4] = [&real::Real, &emulated::Emulated, &opencl::OpenCl, &cuda::Cuda];

/// The class.
pub(super) struct Class;

/// Returns the family of a device; that of device nodes for a name that none has.
fn family(address: &str) -> &'static dyn Family {
    FAMILIES.into_iter().find(|family| family.has(address)).unwrap_or(&real::Real)
}

impl DeviceClass for Class {
    fn form(&self) -> &'static str {
        "PATH[=SIZE], accelerator:opencl[NUMBER][=SIZE], accelerator:cuda[NUMBER][=SIZE], accelerator:emulated[NUMBER]=FUNCTION@RATE or accelerator:emulated[NUMBER][=SIZE],SERVICE"
    }

    fn check_text(&self, offer: &Offer) -> Result<(), String> {
        if FAMILIES.iter().any(|family| family.has(&offer.address)) {
            return family(&offer.address).check_text(offer);
        }
        Err("the path must begin with /, or name it opencl[NUMBER], cuda[NUMBER] or emulated[NUMBER]".to_owned())
    }

    fn probe(&self, host: &Host, offer: &Offer) -> Result<(u64, Vec<String>), String> {
        family(&offer.address).probe(host, offer)
    }

    fn list(&self, host: &Host) -> Vec<Candidate> {
        FAMILIES.iter().flat_map(|family| family.list(host)).collect()
    }

    fn is_there(&self, host: &Host, spec: &ResourceSpec) -> bool {
        family(&spec.address).is_there(host, spec)
    }

    fn is_shared(&self, host: &Host, address: &str) -> bool {
        family(address).is_shared(host, address)
    }

    fn service(&self, host: &Host, spec: &ResourceSpec, secret: ServiceSecret) -> Option<HostSpec> {
        family(&spec.address).service(host, spec, secret)
    }

    fn identity(&self, host: &Host, address: &str) -> Identity {
        family(address).identity(host, address)
    }
}

/// True for an accelerator that a service emulates.
pub(super) fn is_emulated(kind: ResourceKind, address: &str) -> bool {
    kind == ResourceKind::Accelerator && emulated::Emulated.has(address)
}

/// Least memory that is lent of a device with a driver, in bytes.
const LEAST_BYTES: u64 = 1 << 20;

/// Checks the bytes of an offer against those of its device.
fn check_bytes(bytes: u64, most: u64) -> Result<(), String> {
    if bytes > most {
        return Err(format!("is too large: the device has {}", ByteSize(most)));
    }
    if bytes == 0 {
        return Err("has no memory: give it a size".to_owned());
    }
    if bytes < LEAST_BYTES {
        let least = ByteSize(LEAST_BYTES);
        return Err(format!("is too small: lend at least {least}"));
    }
    Ok(())
}

/// Refuses further capabilities that are those of other families: no device has both.
fn check_capabilities(offer: &Offer, others: &[&str]) -> Result<(), String> {
    match offer.capabilities.iter().find(|it| others.contains(&&***it)) {
        Some(other) => Err(format!("{} has no capability {other:?}", offer.address)),
        None => Ok(()),
    }
}

/// True unless a device has left the PCI bus.
fn is_on_bus(host: &Host, pci: Option<&str>) -> bool {
    pci.is_none_or(|pci| host.path(format!("/sys/bus/pci/devices/{pci}")).exists())
}

/// Returns the device of a number.
///
/// # Errors
/// The reason why there is none, in words that follow the offer.
fn numbered<'a, T>(
    devices: &'a [T],
    number: Option<usize>,
    no_driver: &str,
    named: impl Fn(&T) -> String,
) -> Result<&'a T, String> {
    if let Some(device) = number.and_then(|number| devices.get(number)) {
        return Ok(device);
    }
    if devices.is_empty() {
        return Err(format!("cannot be lent: {no_driver}"));
    }
    let all: Vec<String> = devices.iter().map(named).collect();
    Err(format!("is not there: this machine has {}", all.join(", ")))
}

/// Returns a name as one word: `pthread-haswell-amd-epyc`.
fn slug(name: &str) -> String {
    let lower = name.to_lowercase();
    let words = lower.split(|it: char| !it.is_ascii_alphanumeric() && it != '.');
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

/// Returns the number in a name of this stem, 0 if it has none: `opencl`, `opencl1`; `None` for
/// another name.
fn number_after(stem: &str, name: &str) -> Option<usize> {
    match name.strip_prefix(stem)? {
        "" => Some(0),
        digits if digits.bytes().all(|it| it.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_names_every_family() {
        for family in FAMILIES {
            assert!(Class.form().contains(family.form()), "{}", family.form());
        }
    }

    #[test]
    fn names_belong_to_one_family() {
        for name in ["/dev/nvidia0", "opencl", "opencl12", "cuda", "cuda1", "emulated", "emulated3"]
        {
            assert_eq!(FAMILIES.iter().filter(|family| family.has(name)).count(), 1, "{name}");
        }
        for name in ["nvidia0", "openclx", "opencl-1", "emulatedx", ""] {
            assert!(!FAMILIES.iter().any(|family| family.has(name)), "{name}");
        }
    }
}
