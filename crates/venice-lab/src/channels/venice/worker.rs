//! Keeps an application at work, by one channel or by those that the adaptive library chooses.

use std::collections::VecDeque;

use anyhow::{Result, anyhow};
use venice_fabric::Initiator;
use venice_fabric::adaptive::{Ask, ChoiceEvent, ChoiceReason, Chooser, ChooserConfig};
use venice_ports::adaptive::ChoiceLog;

use super::app::App;
use super::kinds::{AppPattern, ChannelKind};
use super::talk::Talker;

/// Who says which channel an operation takes.
enum Guide {
    Fixed(ChannelKind),
    Adaptive(Box<Library>),
}

/// The adaptive library at work.
struct Library {
    chooser: Chooser,
    log: ChoiceLog,
    /// What is under way, by channel, and since when.
    begun: [VecDeque<(ChoiceEvent, u64)>; 3],
    latest: Option<ChoiceEvent>,
    /// Operations begun by each channel that was not on trial.
    taken: [u64; 3],
}

/// An application that has as many operations under way as its pattern has.
pub(super) struct Worker {
    pub(super) app: App,
    pattern: AppPattern,
    guide: Guide,
    /// Operations over.
    pub(super) over: u64,
}

impl Worker {
    /// By this channel, or by the adaptive library's choice.
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

    /// Takes what is over, and begins what can be begun; how many are over. `arrived_bytes`: what the
    /// far end has of messages.
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

    /// Begins one; `false`: the channel takes none just now.
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

    /// Whether the adaptive library has tried every channel.
    pub(super) fn has_learnt(&self) -> bool {
        match &self.guide {
            Guide::Fixed(_) => true,
            Guide::Adaptive(library) => {
                library.latest.is_some_and(|choice| choice.reason != ChoiceReason::Unmeasured)
            }
        }
    }

    /// The channel that is taken most often, trials left out.
    pub(super) fn favourite(&self) -> ChannelKind {
        match &self.guide {
            Guide::Fixed(channel) => *channel,
            Guide::Adaptive(library) => {
                let most = (0..3).max_by_key(|at| library.taken[*at]);
                ChannelKind::ALL[most.unwrap_or(0)]
            }
        }
    }

    /// Why the latest operation took the channel it took.
    pub(super) fn why(&self) -> String {
        match &self.guide {
            Guide::Fixed(channel) => format!("{}: nothing was chosen", channel.name()),
            Guide::Adaptive(library) => {
                library.latest.map_or_else(String::new, |choice| choice.to_string())
            }
        }
    }
}
