//! Report types of `venice model`, and the table of the paper's statements.

use std::collections::BTreeMap;

use serde::Serialize;
use venice_model::{Model, ModelError, Outcome, Quantity, Statement, Sweep, SweptRow};

use super::Presentation;
use crate::report_table::ReportTable;

/// The report that `venice model ... --json` writes. Times are in nanoseconds, lengths in metres,
/// shares of 1.
#[derive(Debug, Clone, Serialize)]
pub struct ModelReport<D> {
    /// The model.
    pub model: &'static str,
    /// Inputs, by the names of the flags.
    pub parameters: BTreeMap<&'static str, f64>,
    /// Results.
    pub outcomes: BTreeMap<String, f64>,
    /// Results in parts.
    pub detail: D,
    /// The paper's statements, beside the equations' results.
    pub paper: Vec<Statement>,
    /// Results along the requested sweep.
    pub sweep: Option<SweptReport>,
}

/// Results along a sweep.
#[derive(Debug, Clone, Serialize)]
pub struct SweptReport {
    /// The swept figure.
    pub name: &'static str,
    /// Its quantity.
    pub quantity: Quantity,
    /// Names and quantities of the results.
    pub columns: Vec<(String, Quantity)>,
    /// Value by value.
    pub rows: Vec<SweptRow>,
}

impl<D: Serialize> ModelReport<D> {
    /// Builds the report of `model`.
    ///
    /// # Errors
    /// When the figures or the sweep are invalid.
    pub(super) fn of<M: Presentation<Detail = D>>(
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

/// Builds the table of the paper's statements.
pub(super) fn papers(statements: &[Statement]) -> ReportTable {
    let head = ["section", "statement", "", "paper", "equation"];
    let mut table = ReportTable::new("The paper's own figures", &head, 3);
    for (at, statement) in statements.iter().enumerate() {
        let write = |value| statement.quantity.write(value);
        let verdict = if statement.agrees { "agrees" } else { "differs" };
        let mark =
            if statement.remark.is_empty() { String::new() } else { format!(" ({})", at + 1) };
        table.rows.push(vec![
            statement.section.to_owned(),
            statement.says.to_owned(),
            format!("{verdict}{mark}"),
            write(statement.paper),
            write(statement.ours),
        ]);
        if !statement.remark.is_empty() {
            table.notes.push(format!("({}) {}.", at + 1, statement.remark));
        }
    }
    table.notes.push(
        "Composable Architecture for Rack Scale Big Data Computing; computed from the paper's figures, \
         whatever the flags say."
            .to_owned(),
    );
    table
}
