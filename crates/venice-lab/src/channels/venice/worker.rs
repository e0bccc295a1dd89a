//! Keeps an application busy, over one channel or over the adaptive library's choice.

use std::collections::VecDeque;

use anyhow::{Result, anyhow};
use venice_fabric::Initiator;
use venice_fabric::adaptive::{Ask, ChoiceEvent, ChoiceReason, Chooser, ChooserConfig};
use venice_ports::adaptive::ChoiceLog;

use super::app::App;
use super::kinds::{AppPattern, ChannelKind};
use super::talk::Talker;

/// Source of an operation's channel.
enum Guide {
    Fixed(ChannelKind),
    Adaptive(Box<Library>),
}

/// State of the adaptive library.
struct Library {
    chooser: Chooser,
    log: ChoiceLog,
    /// Outstanding operations by channel, with their start times.
    begun: [VecDeque<(ChoiceEvent, u64)>; 3],
    latest: Option<ChoiceEvent>,
    /// Operations begun by each channel outside of trials.
    taken: [u64; 3],
}

/// An application with its pattern's number of outstanding operations.
pub(super) struct Worker {
    pub(super) app: App,
    pattern: AppPattern,
    guide: Guide,
    /// Completed operations.
    pub(super) over: u64,
}

impl Worker {
    /// Creates one for this channel, or for the adaptive library's choice.
    pub(super) fn new(pattern: AppPattern, channel: Option<ChannelKind>, talker: Talker) -> Self {
        let guide = channel.map_or_else(
            || {
                Guide::Adaptive(Box::new(Library {
                    chooser: Chooser::new(ChooserConfig::default()),
                    log: ChoiceLog::default(),
                    begun: Default::default(),
                    latest: None,
                    taken: [0; 3],
                }))
            },
            Guide::Fixed,
        );
        Self { app: App::new(pattern, talker), pattern, guide, over: 0 }
    }

    /// Handles completed operations, and begins as many as possible; returns how many completed.
    /// `arrived_bytes` counts the bytes of messages at the far end.
    ///
    /// # Errors
    /// When an operation fails.
    pub(super) fn act(
        &mut self,
        now_ns: u64,
        initiator: &mut Initiator,
        arrived_bytes: u64,
    ) -> Result<u64> {
        let over = self.app.collect(now_ns, initiator, arrived_bytes)?;
        if let Guide::Adaptive(library) = &mut self.guide {
            let Library { chooser, begun, .. } = &mut **library;
            for (begun, over) in begun.iter_mut().zip(over) {
                for _ in 0..over {
                    let one = begun.pop_front();
                    let (choice, began_ns) = one.ok_or_else(|| anyhow!("over but not begun"))?;
                    chooser.done(&choice, began_ns, now_ns);
                }
            }
        }
        while self.app.under_way() < self.pattern.depth() && self.begin(now_ns, initiator)? {}
        let over = over.iter().sum::<usize>() as u64;
        self.over += over;
        Ok(over)
    }

    /// Begins one; returns false if the channel takes none at present.
    fn begin(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<bool> {
        let library = match &mut self.guide {
            Guide::Fixed(channel) => return self.app.begin(now_ns, *channel, initiator),
            Guide::Adaptive(library) => library,
        };
        let choice = library.chooser.choose(&Ask {
            len_bytes: self.pattern.size_bytes(),
            addr: None,
            hint: Some(self.pattern.hint()),
            possible: [true; 3],
        });
        let channel = ChannelKind::ALL[choice.channel.index()];
        if !self.app.begin(now_ns, channel, initiator)? {
            library.chooser.forget(&choice);
            return Ok(false);
        }
        library.log.note(&choice);
        library.begun[choice.channel.index()].push_back((choice, now_ns));
        library.taken[choice.channel.index()] += u64::from(!choice.reason.is_trial());
        library.latest = Some(choice);
        Ok(true)
    }

    /// True if the adaptive library has tried every channel.
    pub(super) fn has_learnt(&self) -> bool {
        match &self.guide {
            Guide::Fixed(_) => true,
            Guide::Adaptive(library) => {
                library.latest.is_some_and(|choice| choice.reason != ChoiceReason::Unmeasured)
            }
        }
    }

    /// Returns the most frequent channel, without trials.
    pub(super) fn favourite(&self) -> ChannelKind {
        match &self.guide {
            Guide::Fixed(channel) => *channel,
            Guide::Adaptive(library) => {
                let most = (0..3).max_by_key(|at| library.taken[*at]);
                ChannelKind::ALL[most.unwrap_or(0)]
            }
        }
    }

    /// Returns the reason for the latest operation's channel.
    pub(super) fn why(&self) -> String {
        match &self.guide {
            Guide::Fixed(channel) => format!("{}: fixed", channel.name()),
            Guide::Adaptive(library) => {
                library.latest.map_or_else(String::new, |choice| choice.to_string())
            }
        }
    }
}
