//! The settings of a TCP stack. Connections do not keep them: each call gets them anew.

mod presets;

use serde::{Deserialize, Serialize};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// The congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Congestion {
    /// RFC 5681.
    NewReno,
    /// RFC 9438. The default of Linux since 2.6.19.
    Cubic,
    /// RFC 8257. Needs [`Config::ecn`].
    Dctcp,
}

/// The rule by which segments count as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossDetection {
    /// Three selective acknowledgments above a segment (RFC 6675, `IsLost`); without SACK three
    /// duplicate acknowledgments (RFC 6582).
    DuplicateThreshold,
    /// Three segments between a segment and the highest one that was selectively acknowledged,
    /// received or not: forward acknowledgment (Mathis and Mahdavi, SIGCOMM 1996). The default of
    /// Linux until 4.14.
    Forward,
    /// Recent acknowledgment by time (RFC 8985). The default of Linux since 4.18.
    Rack,
}

/// The way from the old congestion window to the slow-start threshold in a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reduction {
    /// At once (RFC 6675, section 5, step 4.2).
    Immediate,
    /// One segment for each two acknowledgments, as Linux did before 3.2.
    RateHalving,
    /// Proportional rate reduction (RFC 6937 with the slow-start bound), as Linux does since 3.2.
    Proportional,
}

/// The value that the minimum of the retransmission time-out bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Floor {
    /// The time-out itself (RFC 6298, rule 2.4).
    Timeout,
    /// Its term for the variation: the time-out is at least the smoothed round trip and the minimum,
    /// as in Linux (`tcp_rtt_estimator`).
    Variation,
}

/// The quantity that a loss cuts down to the slow-start threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The congestion window, as in Linux.
    Window,
    /// The bytes sent and not acknowledged in sequence (`FlightSize`: RFC 5681, equation 4; RFC 6675,
    /// section 5, step 4.2).
    FlightSize,
    /// The bytes in the network: neither acknowledged in any way nor lost (`pipe`), as in ns-3.
    Pipe,
}

/// The settings of the retransmission time-out. The default is that of [`Config::linux_today`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Rto {
    /// The least, in nanoseconds. Linux: 200 ms (`TCP_RTO_MIN`).
    pub minimum_ns: u64,
    /// The value that [`Rto::minimum_ns`] bounds.
    pub floor: Floor,
    /// The first, before a round trip was measured, in nanoseconds. RFC 6298: 1 s.
    pub initial_ns: u64,
    /// The most, in nanoseconds. Linux: 120 s (`TCP_RTO_MAX`).
    pub maximum_ns: u64,
    /// The tick of the timers, in nanoseconds: a deadline is rounded up to a whole one (a jiffy of
    /// Linux: 1, 4 or 10 ms). 1 for exact timers.
    pub granularity_ns: u64,
    /// The tick of the clock that measures round trips and stamps segments, in nanoseconds. Linux: a
    /// jiffy before 3.15, 1 µs since.
    pub clock_ns: u64,
}

/// The settings of delayed acknowledgments (RFC 9293, section 3.8.6.3). The default is that of
/// [`Config::linux_today`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct DelayedAck {
    /// The time that an acknowledgment may wait, in nanoseconds. Linux: 40 ms (`TCP_ATO_MIN`) and
    /// more where data comes slowly.
    pub timeout_ns: u64,
    /// The number of full segments that are acknowledged at once; 1 to delay nothing.
    pub segments: u8,
    /// Acknowledgments that are not delayed at the start, after an idle time, and after a duplicate
    /// segment; one out of order is acknowledged at once anyway. Linux: 16 (`TCP_MAX_QUICKACKS`).
    pub quick: u8,
}

/// The settings of a TCP stack. [`Config::default`] is [`Config::linux_today`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Config {
    /// The maximum segment size in bytes, options not subtracted (RFC 6691). Ethernet: 1460.
    pub mss: u16,
    /// The initial congestion window in segments. RFC 6928: 10.
    pub initial_window: u16,
    /// The congestion control.
    pub congestion: Congestion,
    /// True to offer selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// The rule by which segments count as lost.
    pub loss_detection: LossDetection,
    /// The number of duplicate acknowledgments that mean a loss. RFC 5681: 3.
    pub duplicate_threshold: u8,
    /// True to retransmit at fewer duplicate acknowledgments where few segments are outstanding
    /// (RFC 5827), a quarter of a round trip later (its section 3.2). Linux 3.5 to 4.11.
    pub early_retransmit: bool,
    /// True to probe for a loss at the tail (RFC 8985, section 7). Linux since 3.10.
    pub tail_loss_probe: bool,
    /// The way to the smaller window in a recovery.
    pub reduction: Reduction,
    /// The quantity that a loss cuts down to the slow-start threshold.
    pub basis: Basis,
    /// True to grow the window in slow start by what was acknowledged (RFC 3465 without its limit),
    /// not by one segment for each acknowledgment.
    pub byte_counting: bool,
    /// True to offer timestamps (RFC 7323). They cost 12 bytes a segment and measure round trips of
    /// retransmitted segments too.
    pub timestamps: bool,
    /// The retransmission time-out.
    pub rto: Rto,
    /// Delayed acknowledgments.
    pub delayed_ack: DelayedAck,
    /// The receive buffer in bytes: the most that the window offers.
    pub receive_buffer: u32,
    /// The send buffer in bytes: the most that was written and is not acknowledged.
    pub send_buffer: u32,
    /// True to offer explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// True to hold back a small segment while others are outstanding (RFC 9293, section 3.7.4).
    pub nagle: bool,
    /// Retransmissions of a SYN, or of a SYN with ACK, before the connection is given up.
    pub syn_retries: u8,
    /// Time-outs in sequence before the connection is given up. Linux: 15 (`tcp_retries2`).
    pub data_retries: u8,
    /// True to shrink the congestion window after an idle retransmission time-out (RFC 2861).
    pub restart_after_idle: bool,
    /// The initial slow-start threshold in segments.
    pub initial_threshold: u32,
    /// The most that the congestion window grows to, in segments.
    pub window_clamp: u32,
    /// The time in TIME-WAIT in nanoseconds. Linux: 60 s (`TCP_TIMEWAIT_LEN`). 0 closes at once.
    pub time_wait_ns: u64,
}

/// A setting out of its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid TCP configuration: {key} is {value}; it must be {bound}")]
pub struct ConfigError {
    /// The setting, with the table that it is in: `rto.minimum-ns`.
    pub key: &'static str,
    /// Its value.
    pub value: u64,
    /// The values that are possible.
    pub bound: &'static str,
}

impl Config {
    /// Checks all bounds.
    ///
    /// # Errors
    /// If a setting is out of its bounds: names its key and the bound.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Self { rto, delayed_ack, .. } = self;
        let bound = |key, value: u64, holds: bool, bound| match holds {
            true => Ok(()),
            false => Err(ConfigError { key, value, bound }),
        };
        bound("mss", self.mss.into(), self.mss >= 88, "at least 88 bytes (RFC 1122)")?;
        let window = self.initial_window;
        bound("initial-window", window.into(), (1..=1024).contains(&window), "1 to 1024 segments")?;
        let duplicates = self.duplicate_threshold;
        bound("duplicate-threshold", duplicates.into(), duplicates >= 1, "at least 1")?;
        let is_dctcp = self.congestion == Congestion::Dctcp;
        bound("ecn", self.ecn.into(), self.ecn || !is_dctcp, "true for dctcp")?;
        let is_tick = |ns: u64| (1..=SECOND).contains(&ns);
        bound(
            "rto.granularity-ns",
            rto.granularity_ns,
            is_tick(rto.granularity_ns),
            "1 ns to 1 s",
        )?;
        bound("rto.clock-ns", rto.clock_ns, is_tick(rto.clock_ns), "1 ns to 1 s")?;
        bound("rto.minimum-ns", rto.minimum_ns, rto.minimum_ns >= 1_000, "at least 1 us")?;
        let longest = 1_000 * SECOND;
        bound(
            "rto.maximum-ns",
            rto.maximum_ns,
            (rto.minimum_ns..=longest).contains(&rto.maximum_ns),
            "from rto.minimum-ns to 1000 s",
        )?;
        bound(
            "rto.initial-ns",
            rto.initial_ns,
            (rto.minimum_ns..=rto.maximum_ns).contains(&rto.initial_ns),
            "from rto.minimum-ns to rto.maximum-ns",
        )?;
        let delay = delayed_ack.timeout_ns;
        bound("delayed-ack.timeout-ns", delay, (1..=SECOND).contains(&delay), "1 ns to 1 s")?;
        let segments = delayed_ack.segments;
        bound(
            "delayed-ack.segments",
            segments.into(),
            (1..=64).contains(&segments),
            "1 to 64 segments",
        )?;
        let buffer = |bytes: u32| (u32::from(self.mss)..=1 << 30).contains(&bytes);
        let buffer_bound = "from mss to 1 GiB";
        let bytes = self.receive_buffer;
        bound("receive-buffer", bytes.into(), buffer(bytes), buffer_bound)?;
        bound("send-buffer", self.send_buffer.into(), buffer(self.send_buffer), buffer_bound)?;
        bound("data-retries", self.data_retries.into(), self.data_retries >= 1, "at least 1")?;
        let threshold = self.initial_threshold;
        bound("initial-threshold", threshold.into(), threshold >= 2, "at least 2 segments")?;
        let clamp = self.window_clamp;
        bound(
            "window-clamp",
            clamp.into(),
            (2..=1 << 24).contains(&clamp),
            "2 to 16777216 segments",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_key_and_bound() {
        let mut config = Config::default();
        config.rto.initial_ns = 1;
        let error = config.check().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid TCP configuration: rto.initial-ns is 1; it must be from rto.minimum-ns to \
             rto.maximum-ns"
        );
        let config = Config { congestion: Congestion::Dctcp, ecn: false, ..Config::default() };
        assert!(config.check().unwrap_err().to_string().contains("ecn is 0"));
    }

    #[test]
    fn keys_are_optional_but_known() {
        let config: Config =
            serde_json::from_str(r#"{"mss": 536, "congestion": "new-reno"}"#).unwrap();
        assert_eq!((config.mss, config.congestion), (536, Congestion::NewReno));
        let config: Config = serde_json::from_str(r#"{"rto": {"minimum-ns": 5000000}}"#).unwrap();
        assert_eq!((config.rto.minimum_ns, config.rto.initial_ns), (5 * MS, SECOND));
        let error = serde_json::from_str::<Config>(r#"{"msss": 536}"#).unwrap_err().to_string();
        assert!(error.contains("msss"), "{error}");
    }
}
