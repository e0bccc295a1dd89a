//! A link slowed down on purpose, so that a real rack behaves like a chosen fabric.
//!
//! [`LinkModel`] describes the link, [`EmulatedLink`] computes when a frame that departs now is
//! delivered. Nothing here waits: a port holds the frame back until the computed time.

use std::{fmt, num::NonZeroU64, str::FromStr};

use serde::{Deserialize, Serialize, de};

const NS_PER_S: u64 = 1_000_000_000;

/// The model of one direction of a link: its latency and its bandwidth.
///
/// Written `latency=1.4us,bandwidth=5Gbps,router=300ns`, in any order, with at least one of them,
/// and serialised as that text. `Display` gives the exact values back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkModel {
    /// Time from the last bit's departure to its arrival, in nanoseconds.
    pub latency_ns: u64,
    /// Bits per second on the wire; `None`: unlimited.
    pub bandwidth_bps: Option<NonZeroU64>,
    /// Latency added by a router in between, in nanoseconds. It forwards as it receives
    /// (cut-through), so the frame is not serialised a second time.
    pub router_ns: u64,
}

/// The reason a text is not a [`LinkModel`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseLinkModelError {
    /// The text has no part.
    #[error(
        "a link needs latency=, bandwidth= or router=, for example latency=1.4us,bandwidth=5Gbps"
    )]
    Empty,
    /// A part is not one of the three, or is repeated.
    #[error("{0:?} is not one of latency=TIME, bandwidth=RATE, router=TIME, once each")]
    BadPart(String),
    /// The value is not a time.
    #[error("{0:?} is not a time: write a number and ns, us, ms or s, for example 1.4us")]
    NotATime(String),
    /// The value is not a rate.
    #[error(
        "{0:?} is not a rate: write a number and bps, Kbps, Mbps, Gbps or Tbps, for example 5Gbps"
    )]
    NotARate(String),
    /// The value is more than an hour, or exceeds 64 bits.
    #[error("{0:?} is too large")]
    TooLarge(String),
}

/// The longest permitted latency.
const MAX_DELAY_NS: u64 = 3600 * NS_PER_S;

impl LinkModel {
    /// The fabric of the Venice paper (section 6): 1.4 µs point to point, 5 Gb/s per lane.
    pub const PAPER: Self =
        Self { latency_ns: 1400, bandwidth_bps: NonZeroU64::new(5_000_000_000), router_ns: 0 };

    /// Returns latency and router delay together, in nanoseconds.
    pub fn delay_ns(&self) -> u64 {
        self.latency_ns.saturating_add(self.router_ns)
    }

    /// Returns the time the wire is busy with `len_bytes`, in nanoseconds, rounded up.
    pub fn serialisation_ns(&self, len_bytes: usize) -> u64 {
        let Some(bandwidth_bps) = self.bandwidth_bps else { return 0 };
        let ns = bit_ns(len_bytes).div_ceil(bandwidth_bps.get().into());
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns the time of a request of `request_bytes` and its answer of `answer_bytes` on two
    /// idle wires, one in each direction, in nanoseconds.
    pub fn round_trip_ns(&self, request_bytes: usize, answer_bytes: usize) -> u64 {
        let there = self.serialisation_ns(request_bytes).saturating_add(self.delay_ns());
        let back = self.serialisation_ns(answer_bytes).saturating_add(self.delay_ns());
        there.saturating_add(back)
    }
}

/// Returns the bits of `len_bytes` times the nanoseconds of a second.
fn bit_ns(len_bytes: usize) -> u128 {
    len_bytes as u128 * 8 * u128::from(NS_PER_S)
}

/// One direction of an emulated link. Frames depart in order and are delivered in order.
#[derive(Clone, Debug)]
pub struct EmulatedLink {
    model: LinkModel,
    /// The time at which the last queued bit is on the wire: whole nanoseconds, and the rest in
    /// units of a nanosecond / bandwidth, so that the rate is exact however small the frames.
    busy_until_ns: u64,
    busy_rest: u64,
}

impl EmulatedLink {
    /// Returns an idle link.
    pub fn new(model: LinkModel) -> Self {
        Self { model, busy_until_ns: 0, busy_rest: 0 }
    }

    /// Returns the model.
    pub fn model(&self) -> &LinkModel {
        &self.model
    }

    /// Queues a frame of `len_bytes` at `now_ns`: it enters the wire after all earlier ones, and is
    /// delivered whole at the time returned, absolute, in nanoseconds of the same clock.
    pub fn depart(&mut self, now_ns: u64, len_bytes: usize) -> u64 {
        if now_ns > self.busy_until_ns {
            (self.busy_until_ns, self.busy_rest) = (now_ns, 0);
        }
        if let Some(bandwidth_bps) = self.model.bandwidth_bps {
            let bandwidth_bps = u128::from(bandwidth_bps.get());
            let work = bit_ns(len_bytes) + u128::from(self.busy_rest);
            let ns = u64::try_from(work / bandwidth_bps).unwrap_or(u64::MAX);
            self.busy_until_ns = self.busy_until_ns.saturating_add(ns);
            self.busy_rest = (work % bandwidth_bps) as u64;
        }
        let last_bit_ns = self.busy_until_ns.saturating_add(u64::from(self.busy_rest > 0));
        last_bit_ns.saturating_add(self.model.delay_ns())
    }

    /// Returns the time at which the wire is free for another frame: a sender that need not queue
    /// waits until then.
    pub fn free_at_ns(&self) -> u64 {
        self.busy_until_ns.saturating_add(u64::from(self.busy_rest > 0))
    }
}

impl FromStr for LinkModel {
    type Err = ParseLinkModelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        use ParseLinkModelError as E;
        if text.trim().is_empty() {
            return Err(E::Empty);
        }
        let (mut latency_ns, mut bandwidth_bps, mut router_ns) = (None, None, None);
        for part in text.split(',') {
            let bad = || E::BadPart(part.to_owned());
            let (name, value) = part.split_once('=').ok_or_else(bad)?;
            let twice = match name.trim() {
                "latency" => latency_ns.replace(parse_time(value)?).is_some(),
                "bandwidth" => bandwidth_bps.replace(parse_bandwidth(value)?).is_some(),
                "router" => router_ns.replace(parse_time(value)?).is_some(),
                _ => return Err(bad()),
            };
            if twice {
                return Err(bad());
            }
        }
        let (latency_ns, router_ns) = (latency_ns.unwrap_or(0), router_ns.unwrap_or(0));
        Ok(Self { latency_ns, bandwidth_bps, router_ns })
    }
}

fn parse_time(text: &str) -> Result<u64, ParseLinkModelError> {
    let units = [("ns", 1), ("us", 1000), ("µs", 1000), ("ms", 1_000_000), ("s", NS_PER_S)];
    let ns = parse_quantity(text, &units)
        .ok_or_else(|| ParseLinkModelError::NotATime(text.to_owned()))?;
    match u64::try_from(ns) {
        Ok(ns) if ns <= MAX_DELAY_NS => Ok(ns),
        _ => Err(ParseLinkModelError::TooLarge(text.to_owned())),
    }
}

/// Parses a bandwidth in bits per second, written as in a link: `5Gbps`, `250 mbps`.
///
/// # Errors
/// The text is not a bandwidth, is zero, or exceeds 64 bits.
pub fn parse_bandwidth(text: &str) -> Result<NonZeroU64, ParseLinkModelError> {
    let units = [
        ("kbps", 1000),
        ("mbps", 1_000_000),
        ("gbps", 1_000_000_000),
        ("tbps", 1_000_000_000_000),
        ("bps", 1),
    ];
    let not_a_rate = || ParseLinkModelError::NotARate(text.to_owned());
    let bps = parse_quantity(&text.to_ascii_lowercase(), &units).ok_or_else(not_a_rate)?;
    let bps = u64::try_from(bps).map_err(|_| ParseLinkModelError::TooLarge(text.to_owned()))?;
    NonZeroU64::new(bps).ok_or_else(not_a_rate)
}

/// Parses a decimal number and one of `units`; fractions of the smallest unit are cut off.
fn parse_quantity(text: &str, units: &[(&str, u64)]) -> Option<u128> {
    let text = text.trim();
    let (number, scale) = units
        .iter()
        .find_map(|(unit, scale)| Some((text.strip_suffix(unit)?.trim_end(), *scale)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || number.ends_with('.') || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    if fraction.len() > 12 {
        return None;
    }
    // More digits than 64 bits hold in any unit: too large in any case.
    let whole: u128 = if whole.len() > 24 { u128::from(u64::MAX) } else { whole.parse().ok()? };
    let below: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let below = below * u128::from(scale) / 10u128.pow(fraction.len() as u32);
    Some(whole * u128::from(scale) + below)
}

impl fmt::Display for LinkModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("latency={}", show_time(self.latency_ns));
        if let Some(bandwidth_bps) = self.bandwidth_bps {
            let units = [("Tbps", 12), ("Gbps", 9), ("Mbps", 6), ("Kbps", 3), ("bps", 0)];
            text += &format!(",bandwidth={}", show_decimal(bandwidth_bps.get(), &units));
        }
        if self.router_ns > 0 {
            text += &format!(",router={}", show_time(self.router_ns));
        }
        f.pad(&text)
    }
}

fn show_time(ns: u64) -> String {
    show_decimal(ns, &[("s", 9), ("ms", 6), ("us", 3), ("ns", 0)])
}

/// Formats `value` in the largest of `units` (name, power of ten) that it reaches, exactly.
fn show_decimal(value: u64, units: &[(&str, u32)]) -> String {
    let fits = |(_, power): &&(&str, u32)| value >= 10u64.pow(*power);
    let (unit, power) = units.iter().find(fits).or(units.last()).expect("there are units");
    let (whole, rest) = (value / 10u64.pow(*power), value % 10u64.pow(*power));
    if rest == 0 {
        return format!("{whole}{unit}");
    }
    let fraction = format!("{rest:0width$}", width = *power as usize);
    format!("{whole}.{}{unit}", fraction.trim_end_matches('0'))
}

impl Serialize for LinkModel {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LinkModel {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model(text: &str) -> LinkModel {
        text.parse().unwrap()
    }

    #[test]
    fn parses_common_notations() {
        assert_eq!(model("latency=1.4us,bandwidth=5Gbps"), LinkModel::PAPER);
        assert_eq!(model(" bandwidth = 5 gbps , latency = 1400ns"), LinkModel::PAPER);
        let routed = LinkModel { router_ns: 300, ..LinkModel::PAPER };
        assert_eq!(model("latency=1.4µs,router=0.3us,bandwidth=0.005Tbps"), routed);
        assert_eq!(model("latency=2ms").bandwidth_bps, None);
        assert_eq!(routed.to_string(), "latency=1.4us,bandwidth=5Gbps,router=300ns");
    }

    #[test]
    fn parse_error_names_reason() {
        use ParseLinkModelError as E;
        let refused = |text: &str| text.parse::<LinkModel>().unwrap_err();
        assert_eq!(refused(" "), E::Empty);
        for text in ["latency", "speed=1us", "latency=1us,latency=1us", "latency=1us,"] {
            assert!(matches!(refused(text), E::BadPart(_)), "{text}");
        }
        for text in ["latency=1", "latency=us", "router=-1us", "latency=1.us", "latency=1e3us"] {
            assert!(matches!(refused(text), E::NotATime(_)), "{text}");
        }
        for text in ["bandwidth=5", "bandwidth=0bps", "bandwidth=5GB/s", "bandwidth=0.1bps"] {
            assert!(matches!(refused(text), E::NotARate(_)), "{text}");
        }
        for text in ["latency=2000000000s", "bandwidth=99999999999999999999999999999999Tbps"] {
            assert!(matches!(refused(text), E::TooLarge(_)), "{text}");
        }
    }

    #[test]
    fn delay_is_serialisation_plus_latency() {
        let mut link = EmulatedLink::new(LinkModel::PAPER);
        // 128 bytes at 5 Gb/s are 204.8 ns on the wire.
        assert_eq!(link.depart(1000, 128), 1000 + 205 + 1400);
        assert_eq!(link.depart(1000, 128), 1000 + 410 + 1400, "the second queues behind the first");
        assert_eq!(link.depart(5000, 128), 5000 + 205 + 1400, "an idle wire is free at once");
        assert_eq!(LinkModel::PAPER.round_trip_ns(64, 128), 103 + 1400 + 205 + 1400);
        assert_eq!(EmulatedLink::new(model("latency=7ns,router=3ns")).depart(0, 1 << 20), 10);
    }

    proptest! {
        #[test]
        fn model_roundtrips_as_text(
            latency_ns in 0..=MAX_DELAY_NS, bps: u64, router_ns in 0..=MAX_DELAY_NS,
        ) {
            let shown = LinkModel { latency_ns, bandwidth_bps: NonZeroU64::new(bps), router_ns };
            prop_assert_eq!(shown.to_string().parse(), Ok(shown));
        }

        #[test]
        fn parse_never_panics(text in "\\PC*", number in "[0-9.]{0,60}") {
            let _ = text.parse::<LinkModel>();
            let _ = format!("latency={number}us").parse::<LinkModel>();
            let _ = format!("bandwidth={number}Tbps").parse::<LinkModel>();
        }

        /// Frames stay in order, none arrives before its latency has passed, and a busy wire
        /// carries exactly its bandwidth, whatever the frame sizes.
        #[test]
        fn order_and_rate_are_exact(
            bps in 1u64..=1 << 40,
            frames in proptest::collection::vec((0u64..2_000, 1usize..5_000), 1..200),
        ) {
            let model = LinkModel {
                latency_ns: 500, bandwidth_bps: NonZeroU64::new(bps), router_ns: 7,
            };
            let mut link = EmulatedLink::new(model);
            let (mut now_ns, mut last_ns) = (0, 0);
            for (pause_ns, len_bytes) in &frames {
                now_ns += pause_ns;
                let deliver_ns = link.depart(now_ns, *len_bytes);
                prop_assert!(deliver_ns >= last_ns);
                prop_assert!(deliver_ns >= now_ns + model.serialisation_ns(*len_bytes) + 507);
                last_ns = deliver_ns;
            }
            let mut busy = EmulatedLink::new(model);
            let deliver_ns = frames.iter().map(|frame| busy.depart(0, frame.1)).last();
            let all_bytes = frames.iter().map(|frame| frame.1).sum();
            prop_assert_eq!(deliver_ns, Some(model.serialisation_ns(all_bytes) + 507));
        }
    }
}
