//! Comparisons of findings: `p99{servers=2000} > 10 * p99{servers=500}`.
//!
//! ```text
//! condition  = all { "or" all }
//! all        = test { "and" test }
//! test       = sum comparison sum { comparison sum }      a < b < c holds if both do
//! comparison = "<" | "<=" | ">" | ">="
//! sum        = product { ("+" | "-") product }
//! product    = factor { ("*" | "/") factor }
//! factor     = "-" factor | number | figure | function "(" sum ")" | "(" sum ")"
//! function   = "min" | "max" | "mean" | "abs"
//! figure     = name [ "{" coordinate "=" value { "," coordinate "=" value } "}" ]
//! value      = text without , and }, or any text in single or double quotes
//! ```
//!
//! A name has letters, digits, `_`, dots, and hyphens before a letter, and begins with a letter: `a-b` is
//! a name, `a - b` a difference. A figure is that of the one point with these coordinates; inside
//! `min`, `max` and `mean`, of all points with them.

use serde::{Deserialize, Serialize};

use super::Coordinate;
use super::sweep::joined;

/// Depth of brackets that is enough for any finding, and no danger to the stack.
const MOST_NESTED: usize = 32;

/// A comparison of figures at points.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    condition: Condition,
}

/// A text that is no comparison.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {why}")]
pub struct ExpressionError {
    /// Place in the text, from 1.
    pub column: usize,
    /// The reason.
    pub why: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Condition {
    Or(Vec<Condition>),
    And(Vec<Condition>),
    /// Sums, with the comparisons between them.
    Test(Sum, Vec<(Order, Sum)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq)]
enum Sum {
    Number(f64),
    Figure(Selected),
    Negated(Box<Sum>),
    Binary(char, Box<Sum>, Box<Sum>),
    Absolute(Box<Sum>),
    Fold(Fold, Box<Sum>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    Least,
    Greatest,
    Mean,
}

/// A figure at points.
#[derive(Clone, Debug, PartialEq)]
struct Selected {
    name: String,
    places: Vec<(String, String)>,
    text: String,
}

/// Result of an expression over points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The result; `None` if a point or a figure is missing.
    pub holds: Option<bool>,
    /// The comparisons in the order of the text, those that could be made.
    pub comparisons: Vec<Comparison>,
    /// Figures that were read.
    pub readings: Vec<Reading>,
    /// Figures or points that are missing.
    pub missing: Vec<String>,
}

/// One comparison, with the values of both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Value of the left side.
    pub left: f64,
    /// `<`, `<=`, `>` or `>=`.
    pub order: String,
    /// Value of the right side.
    pub right: f64,
    /// True if it holds.
    pub holds: bool,
}

/// One figure of one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The figure as the text has it, or with the point's coordinates.
    pub figure: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

/// The points of a run, as expressions ask for them.
pub trait Source {
    /// Returns the number of points.
    fn len(&self) -> usize;
    /// Returns a point's place on each sweep.
    fn coordinates(&self, point: usize) -> &[Coordinate];
    /// Returns a figure of a point with its unit; `None` if it was not run, or has no such figure.
    fn value(&self, point: usize, figure: &str) -> Option<(f64, &str)>;
}

impl Expression {
    /// Reads a text.
    ///
    /// # Errors
    /// With the column of the first mistake.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let mut parser = Parser { text, at: 0, nested: 0 };
        let condition = parser.condition()?;
        parser.skip_blanks();
        match parser.peek() {
            None => Ok(Self { condition }),
            Some(letter) => Err(parser.wrong(format!("'{letter}' is too much here"))),
        }
    }

    /// Returns each figure's name, with the coordinates and values that select its points.
    pub fn selections(&self) -> Vec<(&str, &[(String, String)])> {
        let mut all = Vec::new();
        self.condition.visit(&mut |selected| all.push((&*selected.name, &*selected.places)));
        all
    }

    /// Evaluates it over points.
    pub fn evaluate(&self, points: &dyn Source) -> Evaluation {
        let (comparisons, readings, missing) = (Vec::new(), Vec::new(), Vec::new());
        let mut found = Evaluation { holds: None, comparisons, readings, missing };
        let holds = self.condition.evaluate(points, &mut found);
        found.holds = holds.filter(|_| found.missing.is_empty());
        found
    }
}

impl Condition {
    fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a Selected)) {
        match self {
            Self::Or(parts) | Self::And(parts) => parts.iter().for_each(|part| part.visit(see)),
            Self::Test(first, rest) => {
                first.visit(see);
                rest.iter().for_each(|(_, sum)| sum.visit(see));
            }
        }
    }

    /// Evaluates every part, so that all figures are read.
    fn evaluate(&self, points: &dyn Source, found: &mut Evaluation) -> Option<bool> {
        match self {
            Self::Or(parts) => {
                let parts: Vec<_> = parts.iter().map(|one| one.evaluate(points, found)).collect();
                parts.into_iter().try_fold(false, |any, part| Some(part? || any))
            }
            Self::And(parts) => {
                let parts: Vec<_> = parts.iter().map(|one| one.evaluate(points, found)).collect();
                parts.into_iter().try_fold(true, |all, part| Some(part? && all))
            }
            Self::Test(first, rest) => {
                let mut left = first.evaluate(points, None, found);
                let mut all = Some(true);
                for (order, sum) in rest {
                    let right = sum.evaluate(points, None, found);
                    let pair = left.zip(right).map(|(left, right)| order.compare(left, right));
                    all = all.zip(pair.as_ref()).map(|(all, pair)| all && pair.holds);
                    found.comparisons.extend(pair);
                    left = right;
                }
                all
            }
        }
    }
}

impl Order {
    fn compare(self, left: f64, right: f64) -> Comparison {
        let (order, holds) = match self {
            Self::Less => ("<", left < right),
            Self::LessOrEqual => ("<=", left <= right),
            Self::Greater => (">", left > right),
            Self::GreaterOrEqual => (">=", left >= right),
        };
        Comparison { left, order: order.to_owned(), right, holds }
    }
}

impl Sum {
    fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a Selected)) {
        match self {
            Self::Number(_) => {}
            Self::Figure(selected) => see(selected),
            Self::Negated(inner) | Self::Absolute(inner) | Self::Fold(_, inner) => inner.visit(see),
            Self::Binary(_, left, right) => {
                left.visit(see);
                right.visit(see);
            }
        }
    }

    /// Evaluates it; `point` is that of a surrounding fold.
    fn evaluate(
        &self,
        points: &dyn Source,
        point: Option<usize>,
        found: &mut Evaluation,
    ) -> Option<f64> {
        match self {
            Self::Number(value) => Some(*value),
            Self::Figure(selected) => selected.read(points, point, found),
            Self::Negated(inner) => inner.evaluate(points, point, found).map(|value| -value),
            Self::Absolute(inner) => inner.evaluate(points, point, found).map(f64::abs),
            Self::Binary(operator, left, right) => {
                let left = left.evaluate(points, point, found);
                let right = right.evaluate(points, point, found);
                let (left, right) = left.zip(right)?;
                let result = match operator {
                    '+' => left + right,
                    '-' => left - right,
                    '*' => left * right,
                    _ => left / right,
                };
                if !result.is_finite() {
                    found.missing.push(format!("{left} {operator} {right} is no number"));
                }
                Some(result).filter(|result| result.is_finite())
            }
            Self::Fold(fold, inner) => fold.over(inner, points, found),
        }
    }
}

impl Fold {
    fn over(self, inner: &Sum, points: &dyn Source, found: &mut Evaluation) -> Option<f64> {
        let mut selections = Vec::new();
        inner.visit(&mut |selected| selections.push(selected));
        let takes =
            |point: usize| selections.iter().all(|one| one.is_at(points.coordinates(point)));
        let taken: Vec<usize> = (0..points.len()).filter(|point| takes(*point)).collect();
        if taken.is_empty() {
            found.missing.extend(selections.first().map(|one| format!("{}: no point", one.text)));
            return None;
        }
        let values: Vec<Option<f64>> =
            taken.iter().map(|point| inner.evaluate(points, Some(*point), found)).collect();
        let values: Vec<f64> = values.into_iter().collect::<Option<_>>()?;
        Some(match self {
            Self::Least => values.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Greatest => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Self::Mean => values.iter().sum::<f64>() / values.len() as f64,
        })
    }
}

impl Selected {
    fn is_at(&self, coordinates: &[Coordinate]) -> bool {
        self.places.iter().all(|(name, value)| {
            coordinates.iter().any(|place| place.name == *name && place.is(value))
        })
    }

    /// Reads the figure of a fold's point, or of the only one that is selected.
    fn read(
        &self,
        points: &dyn Source,
        point: Option<usize>,
        found: &mut Evaluation,
    ) -> Option<f64> {
        let mut miss = |why: String| {
            let missing = format!("{}: {why}", self.text);
            if !found.missing.contains(&missing) {
                found.missing.push(missing);
            }
            None
        };
        let point = match point {
            Some(point) => point,
            None => {
                let is_at = |point: &usize| self.is_at(points.coordinates(*point));
                let selected: Vec<usize> = (0..points.len()).filter(is_at).collect();
                match selected[..] {
                    [only] => only,
                    [] => return miss("no point".to_owned()),
                    _ => return miss(format!("{} points: select one", selected.len())),
                }
            }
        };
        let Some((value, unit)) = points.value(point, &self.name) else {
            return miss(match points.coordinates(point) {
                [] => "not run, or no such figure".to_owned(),
                places => format!("not run, or no such figure, at {}", joined(places, " ")),
            });
        };
        let figure = match points.coordinates(point) {
            [] => self.name.clone(),
            places => format!("{}{{{}}}", self.name, joined(places, ",")),
        };
        if !found.readings.iter().any(|one| one.figure == figure) {
            found.readings.push(Reading { figure, value, unit: unit.to_owned() });
        }
        Some(value).filter(|value| value.is_finite()).or_else(|| miss("not finite".to_owned()))
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    nested: usize,
}

impl<'a> Parser<'a> {
    fn condition(&mut self) -> Result<Condition, ExpressionError> {
        let mut parts = vec![self.all()?];
        while self.takes_word("or") {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::Or(parts) })
    }

    fn all(&mut self) -> Result<Condition, ExpressionError> {
        let mut parts = vec![self.test()?];
        while self.takes_word("and") {
            parts.push(self.test()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::And(parts) })
    }

    fn test(&mut self) -> Result<Condition, ExpressionError> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(order) = self.order() {
            rest.push((order, self.sum()?));
        }
        if rest.is_empty() {
            return Err(self.wrong("a comparison is missing: <, <=, > or >="));
        }
        Ok(Condition::Test(first, rest))
    }

    fn order(&mut self) -> Option<Order> {
        let orders = [
            ("<=", Order::LessOrEqual),
            (">=", Order::GreaterOrEqual),
            ("<", Order::Less),
            (">", Order::Greater),
        ];
        orders.into_iter().find(|(sign, _)| self.takes(sign)).map(|(_, order)| order)
    }

    fn sum(&mut self) -> Result<Sum, ExpressionError> {
        let mut sum = self.product()?;
        while let Some(sign) =
            ['+', '-'].into_iter().find(|sign| self.takes(sign.encode_utf8(&mut [0; 4])))
        {
            sum = Sum::Binary(sign, Box::new(sum), Box::new(self.product()?));
        }
        Ok(sum)
    }

    fn product(&mut self) -> Result<Sum, ExpressionError> {
        let mut product = self.factor()?;
        while let Some(sign) =
            ['*', '/'].into_iter().find(|sign| self.takes(sign.encode_utf8(&mut [0; 4])))
        {
            product = Sum::Binary(sign, Box::new(product), Box::new(self.factor()?));
        }
        Ok(product)
    }

    fn factor(&mut self) -> Result<Sum, ExpressionError> {
        self.nested += 1;
        if self.nested > MOST_NESTED {
            return Err(self.wrong("too many brackets and signs inside each other"));
        }
        let factor = self.factor_inside();
        self.nested -= 1;
        factor
    }

    fn factor_inside(&mut self) -> Result<Sum, ExpressionError> {
        if self.takes("-") {
            return Ok(Sum::Negated(Box::new(self.factor()?)));
        }
        if self.takes("(") {
            let sum = self.sum()?;
            self.closes(')')?;
            return Ok(sum);
        }
        match self.peek() {
            Some('0'..='9') => self.number(),
            Some(letter) if letter.is_ascii_alphabetic() => self.named(),
            Some(letter) => {
                Err(self.wrong(format!("'{letter}' where a figure or a number begins")))
            }
            None => Err(self.wrong("a figure or a number is missing at the end")),
        }
    }

    fn number(&mut self) -> Result<Sum, ExpressionError> {
        let start = self.at;
        let digits = self.word(|c| c.is_ascii_digit() || c == '.');
        let number = digits.parse().map(Sum::Number);
        number.map_err(|_| ExpressionError {
            column: start + 1,
            why: format!("{digits} is no number"),
        })
    }

    fn named(&mut self) -> Result<Sum, ExpressionError> {
        let start = self.at;
        let name = self.name();
        if ["and", "or"].contains(&name) {
            return Err(ExpressionError {
                column: start + 1,
                why: format!("'{name}' where a figure or a number begins"),
            });
        }
        if self.takes("(") {
            let inner = Box::new(self.sum()?);
            self.closes(')')?;
            return match name {
                "abs" => Ok(Sum::Absolute(inner)),
                "min" => Ok(Sum::Fold(Fold::Least, inner)),
                "max" => Ok(Sum::Fold(Fold::Greatest, inner)),
                "mean" => Ok(Sum::Fold(Fold::Mean, inner)),
                _ => Err(ExpressionError {
                    column: start + 1,
                    why: format!("no function {name}: there are min, max, mean and abs"),
                }),
            };
        }
        let places = if self.takes("{") { self.places()? } else { Vec::new() };
        let text = self.text[start..self.at].trim().to_owned();
        Ok(Sum::Figure(Selected { name: name.to_owned(), places, text }))
    }

    fn places(&mut self) -> Result<Vec<(String, String)>, ExpressionError> {
        let mut places = Vec::new();
        loop {
            self.skip_blanks();
            let name = self.word(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)).to_owned();
            if name.is_empty() || !self.takes("=") {
                return Err(self.wrong("write NAME=VALUE between { and }"));
            }
            let value = self.place_value()?;
            if value.is_empty() {
                return Err(self.wrong(format!("{name} has no value")));
            }
            places.push((name, value.to_owned()));
            if !self.takes(",") {
                self.closes('}')?;
                return Ok(places);
            }
        }
    }

    fn place_value(&mut self) -> Result<&'a str, ExpressionError> {
        self.skip_blanks();
        let Some(quote @ ('\'' | '"')) = self.peek() else {
            return Ok(self.word(|c| c != ',' && c != '}').trim_end());
        };
        self.at += 1;
        let value = self.word(|c| c != quote);
        self.closes(quote).map(|()| value)
    }

    fn closes(&mut self, bracket: char) -> Result<(), ExpressionError> {
        match self.takes(bracket.encode_utf8(&mut [0; 4])) {
            true => Ok(()),
            false => Err(self.wrong(format!("a '{bracket}' is missing"))),
        }
    }

    fn takes_word(&mut self, word: &str) -> bool {
        self.skip_blanks();
        let rest = &self.text[self.at..];
        let is_word = rest.strip_prefix(word).is_some_and(|after| {
            !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.')
        });
        self.at += if is_word { word.len() } else { 0 };
        is_word
    }

    fn takes(&mut self, sign: &str) -> bool {
        self.skip_blanks();
        let starts = self.text[self.at..].starts_with(sign);
        self.at += if starts { sign.len() } else { 0 };
        starts
    }

    fn word(&mut self, is_in: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !is_in(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Takes a name; a hyphen is of it if a letter follows.
    fn name(&mut self) -> &'a str {
        let start = self.at;
        loop {
            self.word(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
            let after = self.text[self.at..].strip_prefix('-');
            if !after.is_some_and(|after| after.starts_with(|c: char| c.is_ascii_alphabetic())) {
                return &self.text[start..self.at];
            }
            self.at += 1;
        }
    }

    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn wrong(&self, why: impl Into<String>) -> ExpressionError {
        let column = self.text[..self.at].chars().count() + 1;
        ExpressionError { column, why: why.into() }
    }
}
