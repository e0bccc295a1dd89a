//! Work of a core that no program asked for: the tick of the timer, daemons, the kernel's own threads.
//!
//! It takes no events: when a core begins some work, it looks at what falls into it. The tick stops
//! while a core is idle (`CONFIG_NO_HZ`), and delays as many times as its instants fall into the work. A
//! run of the background takes the core from a thread, or from the kernel at the start of its work; a
//! packet that comes during it is handled at once, as interrupts are.

use serde::{Deserialize, Serialize};
use venice_simkernel::random::{Stream, mix};
use venice_simkernel::units::{Hertz, Picos};

use super::config::BadValue;
use crate::packet::Host;
use crate::part::Shared;
use crate::traffic::Distribution;

/// Settings of a kernel's noise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Noise {
    /// Ticks a second of a busy core (`CONFIG_HZ`); 0: none.
    pub tick: Hertz,
    /// Instructions of a tick (Tsafrir et al., "System noise, OS clock ticks, and fine-grained parallel
    /// applications", 2005: some microseconds).
    pub tick_instructions: u32,
    /// Microseconds between two runs of the background; a constant 0: there is none.
    pub gap: Distribution,
    /// Instructions of a run.
    pub instructions: Distribution,
}

impl Default for Noise {
    fn default() -> Self {
        Self {
            tick: Hertz(250),
            tick_instructions: 8_000,
            gap: Distribution::Exponential { mean: 50_000.0 },
            instructions: Distribution::Pareto { location: 40_000.0, scale: 300_000.0, shape: 0.4 },
        }
    }
}

impl Noise {
    fn has_background(&self) -> bool {
        self.gap != Distribution::Constant { value: 0.0 }
    }

    /// Checks all bounds. A core may be busy with noise for half of its time at most.
    pub(super) fn check(&self, picos_an_instruction: f64) -> Result<(), BadValue> {
        BadValue::unless(self.tick.0 <= 1_000_000, "tick", self.tick, "at most 1MHz")?;
        self.gap.check("gap")?;
        self.instructions.check("instructions")?;
        let ticks = self.tick.0 as f64 * f64::from(self.tick_instructions);
        let share = ticks * picos_an_instruction / Picos::SECOND as f64;
        let bound = "less than half of a core's time in all";
        BadValue::unless(share < 0.5, "tick-instructions", self.tick_instructions, bound)?;
        let run = self.instructions.mean() * picos_an_instruction / Picos::MICRO as f64;
        let is_good = !self.has_background() || run < self.gap.mean() / 2.0;
        let bound = "shorter than half of the gap on average";
        BadValue::unless(is_good, "instructions", format!("{run} us on average"), bound)
    }
}

/// The background of one core: its present or next run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Background {
    random: Stream,
    start: u64,
    end: u64,
}

impl Background {
    pub fn new(random: Stream) -> Self {
        Self { random, start: 0, end: 0 }
    }

    /// Returns the time that noise adds to a work from `from` that needs `time`.
    pub fn delay(&mut self, from: u64, time: u64, host: Host, shared: &Shared) -> u64 {
        let noise = &shared.server.kernel.values.noise;
        let mut delay = 0;
        if let Some(period) = Picos::SECOND.checked_div(noise.tick.0) {
            let phase = mix(host.into()) % period;
            let ticks = (from + time + phase) / period - (from + phase) / period;
            delay += ticks * shared.time_of(noise.tick_instructions);
        }
        while noise.has_background() && self.start < from + time + delay {
            delay += self.end.saturating_sub(self.start.max(from));
            self.draw(noise, shared);
        }
        delay
    }

    fn draw(&mut self, noise: &Noise, shared: &Shared) {
        let gap = (noise.gap.draw(&mut self.random).max(0.001) * Picos::MICRO as f64) as u64;
        self.start = self.end + gap;
        let instructions = noise.instructions.draw(&mut self.random).clamp(0.0, 1e9);
        self.end = self.start + shared.time_of(instructions as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::topology::Topology;

    /// A core without any.
    const NONE: Noise = Noise {
        tick: Hertz(0),
        tick_instructions: 0,
        gap: Distribution::Constant { value: 0.0 },
        instructions: Distribution::Constant { value: 0.0 },
    };

    fn shared(noise: Noise) -> Shared {
        let mut config = Config::default();
        config.server.kernel.values.noise = noise;
        let topology = Topology::build(&config.topology).unwrap();
        let partition = topology.partition(1);
        Shared::new(&config, topology, &partition)
    }

    /// Returns the share of a core's time that noise takes, over works of 10 us with pauses.
    fn share_of(noise: Noise, pause_us: u64) -> f64 {
        let shared = shared(noise);
        let mut background = Background::new(Stream::new(7));
        let work = 10 * Picos::MICRO;
        let (mut now, mut delays, count) = (0, 0, 1_000_000);
        for _ in 0..count {
            let delay = background.delay(now, work, 3, &shared);
            now += work + delay + pause_us * Picos::MICRO;
            delays += delay;
        }
        delays as f64 / (delays + count * work) as f64
    }

    #[test]
    fn ticks_take_their_share() {
        let noise = Noise { tick: Hertz(1000), tick_instructions: 40_000, ..NONE };
        assert_eq!(share_of(NONE, 0), 0.0);
        // A tick of 10 us a millisecond of work: ticks within ticks do not count.
        assert!((share_of(noise.clone(), 0) - 0.01).abs() < 0.0005);
        // An idle core has none.
        assert!((share_of(noise, 87) - 0.01).abs() < 0.0005);
    }

    #[test]
    fn background_takes_its_share() {
        let gap = Distribution::Exponential { mean: 900.0 };
        let instructions = Distribution::Exponential { mean: 400_000.0 };
        let noise = Noise { gap, instructions, ..NONE };
        // 100 us of 1000 for a core that is always busy.
        assert!((share_of(noise.clone(), 0) - 0.1).abs() < 0.005);
        // A work of 10 us meets one that began before it or begins in it.
        let shared = shared(noise);
        let mut background = Background::new(Stream::new(7));
        let met = (0..1_000_000u64).filter(|number| {
            background.delay(number * (1000 * Picos::MICRO), 10 * Picos::MICRO, 0, &shared) > 0
        });
        let met = met.count() as f64 / 1e6;
        assert!((met - (0.1 + 0.9 * 10.0 / 900.0)).abs() < 0.005, "{met}");
    }

    #[test]
    fn noise_without_end_is_refused() {
        let noise =
            Noise { instructions: Distribution::Constant { value: 2e8 }, ..Noise::default() };
        assert_eq!(noise.check(250.0).unwrap_err().key, "instructions");
        let noise = Noise { tick: Hertz(1_000_000), ..Noise::default() };
        assert_eq!(noise.check(250.0).unwrap_err().key, "tick-instructions");
        assert_eq!(Noise::default().check(250.0), Ok(()));
        assert_eq!(NONE.check(250.0), Ok(()));
    }
}
