//! Settings of the Monitor Node that `venice up` shares with `venice monitor`.

use clap::Args;
use serde::{Deserialize, Serialize};
use venice_monitor::MonitorConfig;

/// Settings given; the rest keep the Monitor Node's defaults.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MonitorSettings {
    /// Notice in seconds for a program to move memory elsewhere that is preempted for a request of
    /// higher priority [default: 60]
    #[arg(long, value_name = "SECONDS", env = "VENICE_PREEMPT_NOTICE_S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_notice_s: Option<f64>,
    /// Reserve up to this share of the rack's memory for workloads (a user's grants for one
    /// purpose) whose forecast exceeds their use, for example 25%; off reserves nothing [default:
    /// off]
    #[arg(long, value_name = "off|SHARE", env = "VENICE_RESERVE_AHEAD", value_parser = share)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve_ahead: Option<f64>,
    /// Seconds between two samples of each workload's use [default: 300]
    #[arg(long, value_name = "SECONDS", env = "VENICE_SAMPLE_S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_s: Option<f64>,
    /// Prediction window, in samples [default: 12, an hour]
    #[arg(long, value_name = "N", env = "VENICE_PREDICTION_WINDOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// Observation window, in samples [default: 288, a day]
    #[arg(long, value_name = "N", env = "VENICE_OBSERVATION_WINDOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observe: Option<usize>,
}

impl MonitorSettings {
    /// Applies the settings to a configuration.
    pub fn apply(&self, config: &mut MonitorConfig) {
        config.preempt_notice_s = self.preempt_notice_s.unwrap_or(config.preempt_notice_s);
        config.reserve_ahead = self.reserve_ahead.unwrap_or(config.reserve_ahead);
        config.sample_s = self.sample_s.unwrap_or(config.sample_s);
        config.prediction_window = self.window.unwrap_or(config.prediction_window);
        config.observation_window = self.observe.unwrap_or(config.observation_window);
    }

    /// Returns the settings as arguments of `venice monitor`.
    pub fn arguments(&self) -> Vec<String> {
        let given = self.by_flag().into_iter();
        given.filter_map(|(flag, value)| Some([flag.to_owned(), value?])).flatten().collect()
    }

    /// Returns the first setting that is given here and differs from a Monitor Node with the
    /// settings `has`: its flag, and its value there.
    pub fn difference(&self, has: &Self) -> Option<(&'static str, String)> {
        let defaults = Self::defaults();
        let pairs = self.by_flag().into_iter().zip(has.by_flag()).zip(defaults.by_flag());
        let mut pairs = pairs.map(|(((flag, asked), (_, has)), (_, default))| {
            (flag, asked, has.or(default).unwrap_or_default())
        });
        let (flag, _, has) =
            pairs.find(|(_, asked, has)| asked.as_ref().is_some_and(|asked| asked != has))?;
        Some((flag, has))
    }

    /// Replaces the key of a setting, at the beginning of an error's text, by its flag.
    pub fn by_its_flag(text: &str) -> String {
        let names = [
            ("preempt_notice_s", "--preempt-notice-s"),
            ("reserve_ahead", "--reserve-ahead"),
            ("sample_s", "--sample-s"),
            ("prediction_window", "--window"),
            ("observation_window", "--observe"),
        ];
        let named = names.iter().find_map(|(key, flag)| Some((flag, text.strip_prefix(key)?)));
        named.map_or_else(|| text.to_owned(), |(flag, rest)| format!("{flag}{rest}"))
    }

    fn by_flag(&self) -> [(&'static str, Option<String>); 5] {
        [
            ("--preempt-notice-s", self.preempt_notice_s.map(|it| it.to_string())),
            ("--reserve-ahead", self.reserve_ahead.map(|it| it.to_string())),
            ("--sample-s", self.sample_s.map(|it| it.to_string())),
            ("--window", self.window.map(|it| it.to_string())),
            ("--observe", self.observe.map(|it| it.to_string())),
        ]
    }

    fn defaults() -> Self {
        let config = MonitorConfig::default();
        Self {
            preempt_notice_s: Some(config.preempt_notice_s),
            reserve_ahead: Some(config.reserve_ahead),
            sample_s: Some(config.sample_s),
            window: Some(config.prediction_window),
            observe: Some(config.observation_window),
        }
    }
}

/// Parses `off`, or a share: `25%`, `0.25`.
fn share(text: &str) -> Result<f64, String> {
    let number = match text.strip_suffix('%') {
        _ if text == "off" => Ok(0.0),
        Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    let share = number.ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("{text:?} is not a share: write off, or for example 25%"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: MonitorSettings,
    }

    fn read(words: &[&str]) -> MonitorSettings {
        Line::try_parse_from([&["up"], words].concat()).unwrap().settings
    }

    #[test]
    fn settings_roundtrip_as_arguments() {
        let words = ["--preempt-notice-s", "2.5", "--reserve-ahead", "25%", "--observe", "40"];
        let settings = read(&words);
        let again: Vec<String> = settings.arguments();
        assert_eq!(again[..4], ["--preempt-notice-s", "2.5", "--reserve-ahead", "0.25"]);
        assert_eq!(read(&again.iter().map(String::as_str).collect::<Vec<_>>()), settings);
        let mut config = MonitorConfig::default();
        settings.apply(&mut config);
        assert_eq!((config.preempt_notice_s, config.observation_window), (2.5, 40));
        assert_eq!(config.sample_s, MonitorConfig::default().sample_s);
        assert_eq!(read(&[]).arguments(), Vec::<String>::new());
    }

    #[test]
    fn difference_ignores_unset_settings() {
        let kept = read(&["--reserve-ahead", "25%", "--sample-s", "1"]);
        assert_eq!(read(&[]).difference(&kept), None);
        assert_eq!(read(&["--reserve-ahead", "0.25"]).difference(&kept), None);
        assert_eq!(read(&["--preempt-notice-s", "60"]).difference(&kept), None, "the default");
        let off = read(&["--reserve-ahead", "off"]);
        assert_eq!(off.difference(&kept), Some(("--reserve-ahead", "0.25".to_owned())));
        assert_eq!(off.difference(&read(&[])), None);
    }
}
