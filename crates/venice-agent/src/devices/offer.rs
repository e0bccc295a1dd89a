//! An operator's offer: `accelerator:/dev/nvidia0`, `nic:eth1`, `storage:/srv/pool=100GiB`.

use std::fmt;
use std::str::FromStr;

use venice_control::ResourceKind;
use venice_wire::ByteSize;

use super::accelerator::is_emulated;
use super::class::{class_of, classes};

/// Longest name of a device or of a capability, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// A device to lend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Kind of the device.
    pub kind: ResourceKind,
    /// Name on this machine: a path, or that of a network card.
    pub address: String,
    /// Bytes to lend, if given.
    pub bytes: Option<u64>,
    /// Capabilities beyond those that the agent detects.
    pub capabilities: Vec<String>,
}

/// An invalid offer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid device {text:?} ({why}): write {}, followed by ,CAPABILITY for further capabilities",
    forms()
)]
pub struct BadOffer {
    text: String,
    why: String,
}

impl Offer {
    /// Checks the parts of the offer that depend on each other.
    ///
    /// # Errors
    /// The mistake, in words that follow the offer.
    pub fn check(&self) -> Result<(), String> {
        class_of(self.kind).map_or(Ok(()), |class| class.check_size(self))
    }

    /// Checks that the device is named by a path.
    pub(super) fn check_path(&self) -> Result<(), String> {
        match self.address.starts_with('/') {
            true => Ok(()),
            false => Err("the path must begin with /".to_owned()),
        }
    }
}

impl FromStr for Offer {
    type Err = BadOffer;

    fn from_str(text: &str) -> Result<Self, BadOffer> {
        parse(text).map_err(|why| BadOffer { text: text.to_owned(), why })
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.address)?;
        if let Some(bytes) = self.bytes {
            write!(f, "={}", exact(bytes))?;
        }
        self.capabilities.iter().try_for_each(|it| write!(f, ",{it}"))
    }
}

/// Formats a size in the largest unit that divides it, so that parsing gives the same value.
fn exact(bytes: u64) -> String {
    let units = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units.into_iter().find(|(_, bits)| bytes > 0 && bytes.is_multiple_of(1 << bits));
    whole.map_or_else(|| format!("{bytes}B"), |(unit, bits)| format!("{}{unit}", bytes >> bits))
}

/// Returns the forms of all offers: `accelerator:PATH[=SIZE], nic:NAME or ...`.
pub(super) fn forms() -> String {
    let forms: Vec<String> =
        classes().map(|(kind, class)| format!("{kind}:{}", class.form())).collect();
    let (last, first) = forms.split_last().expect("there are kinds of devices");
    format!("{} or {last}", first.join(", "))
}

fn parse(text: &str) -> Result<Offer, String> {
    let (kind, rest) = text.split_once(':').ok_or("missing kind: expected KIND:PATH")?;
    let kind = ResourceKind::device_named(kind).map_err(|error| error.to_string())?;
    let mut parts = rest.split(',');
    let device = parts.next().unwrap_or_default();
    let mut capabilities: Vec<String> = parts.map(str::to_owned).collect();
    let (address, size) = match device.split_once('=') {
        // What an emulated accelerator computes, and how fast, is one of its capabilities.
        Some((address, model)) if model.contains('@') => {
            capabilities.insert(0, model.to_owned());
            (address, None)
        }
        Some((address, size)) => (address, Some(size)),
        None => (device, None),
    };
    let names = capabilities.iter().map(String::as_str).chain([address]);
    for name in names {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
            return Err(format!("names have 1 to {MAX_NAME_BYTES} printable bytes"));
        }
    }
    let bytes = size.map(|size| size.parse::<ByteSize>().map(|size| size.0));
    let bytes = bytes.transpose().map_err(|error| error.to_string())?;
    let offer = Offer { kind, address: address.to_owned(), bytes, capabilities };
    let has_model = offer.capabilities.iter().any(|it| it.contains('@'));
    if has_model && !is_emulated(kind, address) {
        return Err("FUNCTION@RATE is for an emulated accelerator".to_owned());
    }
    class_of(kind).map_or(Ok(()), |class| class.check_text(&offer))?;
    Ok(offer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offer_text_roundtrips() {
        for text in [
            "accelerator:/dev/nvidia0",
            "accelerator:/dev/accel/accel0=16GiB,fft,crypto",
            "nic:eth1",
            "storage:/dev/sdb",
            "storage:/srv/pool=100GiB,ssd",
            "storage:/srv/pool=1100MiB",
            "storage:/srv/pool=1234567890B",
            "storage:/srv/pool=0B",
        ] {
            assert_eq!(text.parse::<Offer>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn model_is_a_capability() {
        let offer: Offer = "accelerator:emulated0=fft@64MB/s,near".parse().unwrap();
        assert_eq!((offer.bytes, offer.capabilities.len()), (None, 2));
        let text = offer.to_string();
        assert_eq!(text, "accelerator:emulated0,fft@64MB/s,near");
        assert_eq!(text.parse::<Offer>().unwrap(), offer);
    }

    #[test]
    fn invalid_offer_is_named() {
        for (text, said) in [
            ("/dev/nvidia0", "missing kind"),
            ("gpu:/dev/nvidia0", "unknown kind"),
            ("memory:/dev/mem", "unknown kind"),
            ("accelerator:nvidia0", "begin with /"),
            ("nic:/sys/class/net/eth1", "without a path"),
            ("nic:eth1=5GiB", "no size"),
            ("storage:/srv=five", "five"),
            ("storage:/srv=fft@1MB/s", "emulated accelerator"),
            ("storage:", "1 to 255"),
            ("nic:eth1,", "1 to 255"),
        ] {
            let error = text.parse::<Offer>().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
