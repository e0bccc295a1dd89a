//! A flag for every figure of a model.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, error::Error};
use venice_model::{Model, Parameter};

/// A model with the figures of the command line, and the paper's for the rest.
#[derive(Debug, Clone)]
pub struct Figures<M>(pub M);

impl<M: Model> FromArgMatches for Figures<M> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut figures = Figures(M::default());
        figures.update_from_arg_matches(matches)?;
        Ok(figures)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for parameter in M::PARAMETERS {
            if let Some(value) = matches.get_one::<f64>(parameter.name) {
                (parameter.set)(&mut self.0, *value);
            }
        }
        Ok(())
    }
}

impl<M: Model> Args for Figures<M> {
    fn augment_args(command: Command) -> Command {
        let usual = M::default();
        command.args(M::PARAMETERS.iter().map(|parameter| flag(parameter, &usual)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag<M>(parameter: &Parameter<M>, usual: &M) -> Arg {
    let quantity = parameter.quantity;
    // The default as one would type it.
    let usual = quantity.write((parameter.get)(usual)).replace(' ', "");
    Arg::new(parameter.name)
        .long(parameter.name)
        .value_name(quantity.placeholder())
        .help(format!("{} [default: {usual}]", parameter.about))
        .help_heading("Figures (the paper's unless given)")
        .allow_negative_numbers(true)
        .value_parser(move |text: &str| quantity.parse(text))
}

#[cfg(test)]
mod tests {
    use venice_model::CostModel;

    use super::*;

    fn parsed(words: &[&str]) -> Result<CostModel, Error> {
        let command = Figures::<CostModel>::augment_args(Command::new("cost").no_binary_name(true));
        let matches = command.try_get_matches_from(words)?;
        Figures::from_arg_matches(&matches).map(|Figures(model)| model)
    }

    #[test]
    fn specific_flag_overrides_general() {
        let model = parsed(&["--gpu-utilization", "30%", "--utilization", "0.8"]).unwrap();
        assert_eq!(model.composable, [0.8, 0.3, 0.8, 0.8]);
        assert_eq!(model.traditional, [0.5; 4]);
        assert_eq!(parsed(&[]).unwrap(), CostModel::default());
    }

    #[test]
    fn invalid_figure_names_valid_ones() {
        let said = parsed(&["--utilization", "75"]).unwrap_err().to_string();
        assert!(said.contains("75% or 0.75"), "{said}");
        assert!(parsed(&["--memory-modules", "-3"]).is_err());
    }
}
