//! What a model gives, for programs; and the paper's sentences, for people.

use std::collections::BTreeMap;

use serde::Serialize;
use venice_model::{Model, ModelError, Outcome, Quantity, Statement, Sweep, SweptRow};

use super::Told;
use crate::sheet::Sheet;

/// Everything `venice model ... --json` writes. Times are in nanoseconds, lengths in metres, shares of 1.
#[derive(Debug, Clone, Serialize)]
pub struct ModelReport<D> {
    /// Which model.
    pub model: &'static str,
    /// What went in, by the names of the flags.
    pub parameters: BTreeMap<&'static str, f64>,
    /// What came out.
    pub outcomes: BTreeMap<String, f64>,
    /// The same in parts.
    pub detail: D,
    /// What the paper says, beside what its equations give.
    pub paper: Vec<Statement>,
    /// What came out along the sweep that was asked for.
    pub sweep: Option<SweptReport>,
}

/// What came out along a sweep.
#[derive(Debug, Clone, Serialize)]
pub struct SweptReport {
    /// The figure that was walked along.
    pub name: &'static str,
    /// What it counts.
    pub quantity: Quantity,
    /// What came out, by name and by what it counts.
    pub columns: Vec<(String, Quantity)>,
    /// Value by value.
    pub rows: Vec<SweptRow>,
}

impl<D: Serialize> ModelReport<D> {
    /// All that `model` gives.
    ///
    /// # Errors
    /// When it makes no sense of its figures, or of those of the sweep.
    pub(super) fn of<M: Told<Detail = D>>(
        model: &M,
        sweep: Option<&Sweep>,
    ) -> Result<Self, ModelError> {
        let outcomes = model.outcomes()?;
        let read =
            |parameter: &venice_model::Parameter<M>| (parameter.name, (parameter.get)(model));
        Ok(Self {
            model: M::NAME,
            parameters: M::PARAMETERS.iter().map(read).collect(),
            detail: model.detail()?,
            paper: M::statements(),
            sweep: sweep.map(|sweep| SweptReport::of(model, sweep, &outcomes)).transpose()?,
            outcomes: outcomes.into_iter().map(|one| (one.name, one.value)).collect(),
        })
    }
}

impl SweptReport {
    fn of<M: Model>(model: &M, sweep: &Sweep, outcomes: &[Outcome]) -> Result<Self, ModelError> {
        let parameter = M::parameter(sweep.name).expect("the sweep is of this model");
        Ok(Self {
            name: parameter.name,
            quantity: parameter.quantity,
            columns: outcomes.iter().map(|one| (one.name.clone(), one.quantity)).collect(),
            rows: sweep.run(model)?,
        })
    }
}

/// The paper's sentences.
pub(super) fn papers(statements: &[Statement]) -> Sheet {
    let head = ["section", "the paper says", "", "paper", "equation"];
    let mut sheet = Sheet::new("The paper's own figures", &head, 3);
    for (at, statement) in statements.iter().enumerate() {
        let write = |value| statement.quantity.write(value);
        let verdict = if statement.agrees { "agrees" } else { "differs" };
        let mark =
            if statement.remark.is_empty() { String::new() } else { format!(" ({})", at + 1) };
        sheet.rows.push(vec![
            statement.section.to_owned(),
            statement.says.to_owned(),
            format!("{verdict}{mark}"),
            write(statement.paper),
            write(statement.ours),
        ]);
        if !statement.remark.is_empty() {
            sheet.notes.push(format!("({}) {}.", at + 1, statement.remark));
        }
    }
    sheet.notes.push(
        "Composable Architecture for Rack Scale Big Data Computing; computed from the paper's figures, \
         whatever the flags say."
            .to_owned(),
    );
    sheet
}
