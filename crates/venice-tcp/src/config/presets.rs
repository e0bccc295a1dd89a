//! Settings after versions of Linux, and after the RFCs alone.

use super::{
    Basis, Config, Congestion, DelayedAck, Floor, LossDetection, MS, Reduction, Rto, SECOND,
};

impl Default for Config {
    fn default() -> Self {
        Self::linux_today()
    }
}

impl Default for Rto {
    fn default() -> Self {
        Config::linux_today().rto
    }
}

impl Default for DelayedAck {
    fn default() -> Self {
        Config::linux_today().delayed_ack
    }
}

impl Config {
    /// Returns the settings after Linux 2.6.39 (May 2011), with a tick of 4 ms (`HZ` 250, its
    /// default): the first with an initial window of ten segments, the last but one with an initial
    /// time-out of 3 s. CUBIC, forward acknowledgment, rate halving; no early retransmit.
    pub fn linux_2_6_39() -> Self {
        Self {
            mss: 1460,
            initial_window: 10,
            congestion: Congestion::Cubic,
            sack: true,
            loss_detection: LossDetection::Forward,
            duplicate_threshold: 3,
            early_retransmit: false,
            tail_loss_probe: false,
            reduction: Reduction::RateHalving,
            basis: Basis::Window,
            byte_counting: false,
            timestamps: true,
            rto: Rto {
                minimum_ns: 200 * MS,
                floor: Floor::Variation,
                initial_ns: 3 * SECOND,
                maximum_ns: 120 * SECOND,
                granularity_ns: 4 * MS,
                clock_ns: 4 * MS,
            },
            delayed_ack: DelayedAck { timeout_ns: 40 * MS, segments: 2, quick: 16 },
            // What autotuning reaches: the maxima of tcp_rmem, less a quarter, and of tcp_wmem.
            receive_buffer: 3 << 20,
            send_buffer: 4 << 20,
            ecn: false,
            nagle: true,
            syn_retries: 5,
            data_retries: 15,
            restart_after_idle: true,
            initial_threshold: u32::MAX,
            window_clamp: 1 << 20,
            time_wait_ns: 60 * SECOND,
        }
    }

    /// Returns the settings after Linux 3.5.7 (October 2012): as [`Config::linux_2_6_39`], with
    /// proportional rate reduction (3.2), delayed early retransmit (3.5) and an initial time-out of
    /// 1 s (3.1).
    pub fn linux_3_5() -> Self {
        let old = Self::linux_2_6_39();
        Self {
            early_retransmit: true,
            reduction: Reduction::Proportional,
            rto: Rto { initial_ns: SECOND, ..old.rto },
            ..old
        }
    }

    /// Returns the settings after Linux 6.x: RACK with tail loss probes, byte counting, round trips
    /// in microseconds, exact enough timers (`HZ` 1000).
    pub fn linux_today() -> Self {
        let old = Self::linux_3_5();
        Self {
            loss_detection: LossDetection::Rack,
            early_retransmit: false,
            tail_loss_probe: true,
            byte_counting: true,
            rto: Rto { granularity_ns: MS, clock_ns: 1_000, ..old.rto },
            receive_buffer: 3 << 20,
            syn_retries: 6,
            ..old
        }
    }

    /// Returns settings after the RFCs alone, as simulators have them: NewReno (RFC 5681, 6582), SACK
    /// recovery (RFC 6675), exact timers with a minimum of 1 s, no timestamps, no quick
    /// acknowledgments.
    pub fn rfc() -> Self {
        let linux = Self::linux_today();
        Self {
            congestion: Congestion::NewReno,
            loss_detection: LossDetection::DuplicateThreshold,
            tail_loss_probe: false,
            reduction: Reduction::Immediate,
            basis: Basis::FlightSize,
            timestamps: false,
            rto: Rto {
                minimum_ns: SECOND,
                floor: Floor::Timeout,
                maximum_ns: 60 * SECOND,
                granularity_ns: 1,
                clock_ns: 1,
                ..linux.rto
            },
            delayed_ack: DelayedAck { timeout_ns: 200 * MS, segments: 2, quick: 0 },
            ..linux
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid() {
        for preset in
            [Config::linux_2_6_39(), Config::linux_3_5(), Config::linux_today(), Config::rfc()]
        {
            assert_eq!(preset.check(), Ok(()));
            let text = serde_json::to_string(&preset).unwrap();
            assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), preset);
        }
    }
}
