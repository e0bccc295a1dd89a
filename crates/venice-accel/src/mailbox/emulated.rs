//! Emulated accelerators: right results, in the time of a model.

use std::str::FromStr;

use venice_service::DeviceModel;

use super::builtin::{BuiltIn, Processor};
use super::executor::{Executor, TaskBuffers};
use super::outcome::{Outcome, ResultCode, TaskError};
use super::task::{Code, Task};

/// Description of an emulated accelerator: `FUNCTION[+FUNCTION...]@RATE`, as in `fft@64MB/s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatedModel {
    /// The functions that it has; at least one.
    pub functions: Vec<BuiltIn>,
    /// Time of a task: the latency, and the bytes of its input at the rate.
    pub model: DeviceModel,
}

impl EmulatedModel {
    /// Returns the time of a task with this input on the accelerator, in nanoseconds.
    pub fn time_ns(&self, input_bytes: u64) -> u64 {
        let moved = u128::from(input_bytes) * 1_000_000_000;
        let moved_ns = moved.checked_div(u128::from(self.model.bytes_per_s)).unwrap_or(0);
        self.model.latency_ns.saturating_add(u64::try_from(moved_ns).unwrap_or(u64::MAX))
    }
}

impl FromStr for EmulatedModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("'{text}': expected FUNCTION@RATE, for example fft@64MB/s");
        let (functions, model) = text.split_once('@').ok_or_else(malformed)?;
        let functions = functions.split('+').map(BuiltIn::from_str);
        let functions = functions.collect::<Result<Vec<BuiltIn>, _>>()?;
        if let Some(at) = (1..functions.len()).find(|at| functions[..*at].contains(&functions[*at]))
        {
            return Err(format!("'{text}' names {} twice", functions[at]));
        }
        Ok(Self { functions, model: model.parse()? })
    }
}

/// An accelerator that computes its functions on the processor. A completion is not flagged before
/// the model's time; if the processor takes longer, the task takes longer, and counts as late.
pub struct EmulatedAccelerator {
    model: EmulatedModel,
    processor: Processor,
}

impl EmulatedAccelerator {
    /// Returns the accelerator.
    pub fn new(model: EmulatedModel) -> Self {
        Self { model, processor: Processor::default() }
    }
}

impl Executor for EmulatedAccelerator {
    fn run(&mut self, task: &Task, buffers: &mut TaskBuffers<'_>) -> Outcome {
        let unsupported = |said: String| TaskError::new(ResultCode::Unsupported, said);
        match &task.executable.code {
            Code::BuiltIn => {}
            Code::OpenClSource(_) | Code::SpirV(_) | Code::DeviceBinary(_) => {
                let said = "an emulated accelerator runs built-in functions only";
                return Err(unsupported(said.to_owned()));
            }
        }
        let name = &task.executable.name;
        let known = self.model.functions.iter().find(|it| it.to_string() == *name);
        match known {
            Some(function) => self.processor.run(*function, &task.executable, buffers),
            None => {
                let all = self.functions().join(", ");
                Err(unsupported(format!("no function '{name}': this accelerator has {all}")))
            }
        }
    }

    fn least_time_ns(&self, task: &Task) -> u64 {
        self.model.time_ns(task.input_bytes)
    }

    fn functions(&self) -> Vec<String> {
        self.model.functions.iter().map(BuiltIn::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_text_is_read() {
        let model: EmulatedModel = "fft+sum@64MB/s".parse().unwrap();
        assert_eq!(model.functions, [BuiltIn::Fft, BuiltIn::Sum]);
        assert_eq!(model.model.bytes_per_s, 64_000_000);
        assert_eq!(model.time_ns(64_000_000), 1_000_000_000);
        for wrong in ["fft", "fft@", "fft@64MB", "fft@0B/s", "crypto@64MB/s", "@64MB/s"] {
            assert!(wrong.parse::<EmulatedModel>().is_err(), "{wrong}");
        }
    }
}
