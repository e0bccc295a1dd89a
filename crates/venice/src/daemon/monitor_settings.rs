//! What of a Monitor Node's behaviour `venice up` can set as `venice monitor` does.

use clap::Args;
use serde::{Deserialize, Serialize};
use venice_monitor::MonitorConfig;

/// Whatever is given; the rest is as the Monitor Node has it by itself.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MonitorSettings {
    /// Seconds that a program has for moving elsewhere what is called back from it for a request of
    /// higher priority [default: 60]
    #[arg(long, value_name = "SECONDS", env = "VENICE_PREEMPT_NOTICE_S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt_notice_s: Option<f64>,
    /// Keep up to this share of the rack's memory free for workloads (a user's grants for one
    /// purpose) that are foretold to need more than they use, as in 25%; off: keep nothing
    /// [default: off]
    #[arg(long, value_name = "off|SHARE", env = "VENICE_RESERVE_AHEAD", value_parser = share)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve_ahead: Option<f64>,
    /// Seconds between two looks at what every workload uses [default: 300]
    #[arg(long, value_name = "SECONDS", env = "VENICE_SAMPLE_S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_s: Option<f64>,
    /// How many looks ahead is foretold [default: 12, an hour]
    #[arg(long, value_name = "N", env = "VENICE_PREDICTION_WINDOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// From how many looks back [default: 288, a day]
    #[arg(long, value_name = "N", env = "VENICE_OBSERVATION_WINDOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observe: Option<usize>,
}

impl MonitorSettings {
    /// Puts them over what a configuration has.
    pub fn apply(&self, config: &mut MonitorConfig) {
        config.preempt_notice_s = self.preempt_notice_s.unwrap_or(config.preempt_notice_s);
        config.reserve_ahead = self.reserve_ahead.unwrap_or(config.reserve_ahead);
        config.sample_s = self.sample_s.unwrap_or(config.sample_s);
        config.prediction_window = self.window.unwrap_or(config.prediction_window);
        config.observation_window = self.observe.unwrap_or(config.observation_window);
    }

    /// As `venice monitor` takes them.
    pub fn arguments(&self) -> Vec<String> {
        let given = self.by_flag().into_iter();
        given.filter_map(|(flag, value)| Some([flag.to_owned(), value?])).flatten().collect()
    }

    /// The first that is asked for and is another one in a Monitor Node with the settings `has`: the
    /// flag, and what it is there.
    pub fn difference(&self, has: &Self) -> Option<(&'static str, String)> {
        let usual = Self::usual();
        let pairs = self.by_flag().into_iter().zip(has.by_flag()).zip(usual.by_flag());
        let mut pairs = pairs.map(|(((flag, asked), (_, has)), (_, usual))| {
            (flag, asked, has.or(usual).unwrap_or_default())
        });
        let (flag, _, has) =
            pairs.find(|(_, asked, has)| asked.as_ref().is_some_and(|asked| asked != has))?;
        Some((flag, has))
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

    fn usual() -> Self {
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

/// `off`, or a share: `25%`, `0.25`.
fn share(text: &str) -> Result<f64, String> {
    let number = match text.strip_suffix('%') {
        _ if text == "off" => Ok(0.0),
        Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    let share = number.ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("{text:?} is no share: write off, or as in 25%"))
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
    fn what_is_given_is_passed_on_and_read_again() {
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
    fn only_what_is_asked_for_can_differ() {
        let kept = read(&["--reserve-ahead", "25%", "--sample-s", "1"]);
        assert_eq!(read(&[]).difference(&kept), None);
        assert_eq!(read(&["--reserve-ahead", "0.25"]).difference(&kept), None);
        assert_eq!(read(&["--preempt-notice-s", "60"]).difference(&kept), None, "the usual");
        let off = read(&["--reserve-ahead", "off"]);
        assert_eq!(off.difference(&kept), Some(("--reserve-ahead", "0.25".to_owned())));
        assert_eq!(off.difference(&read(&[])), None);
    }
}
