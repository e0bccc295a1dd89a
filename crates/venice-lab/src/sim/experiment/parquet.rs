//! Results as tables in Apache Parquet: one of points, one of the histograms' buckets.

use std::sync::Arc;

use anyhow::{Context, Result};
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use toml::Value;
use venice_experiment::Results;

/// A column with a value in each row, or in some.
struct Column {
    name: String,
    values: Values,
}

enum Values {
    Whole(Vec<i64>),
    Text(Vec<String>),
    Figures(Vec<Option<f64>>),
}

/// Returns a file with a row for each point: coordinates, state, seconds it took, and all figures.
pub(super) fn points(results: &Results) -> Result<Vec<u8>> {
    let points = &results.points;
    let mut columns = coordinates(results, points.iter().enumerate().map(|(at, _)| at));
    let state = points.iter().map(|point| point.state.words().to_owned()).collect();
    columns.push(Column { name: "state".into(), values: Values::Text(state) });
    let wall = points.iter().map(|point| point.outcome.is_some().then_some(point.wall_s)).collect();
    columns.push(Column { name: "wall_s".into(), values: Values::Figures(wall) });
    for name in results.figure_names() {
        let value = |point: &venice_experiment::PointResult| {
            let value = point.outcome.as_ref()?.value(&name)?.0;
            value.is_finite().then_some(value)
        };
        let values = Values::Figures(points.iter().map(value).collect());
        columns.push(Column { name, values });
    }
    file(results, columns)
}

/// Returns a file with a row for each filled bucket of each histogram: the point, the histogram, the
/// bucket's highest value and its count.
pub(super) fn histograms(results: &Results) -> Result<Vec<u8>> {
    let (mut rows, mut names, mut units) = (Vec::new(), Vec::new(), Vec::new());
    let (mut values, mut counts) = (Vec::new(), Vec::new());
    for (at, point) in results.points.iter().enumerate() {
        for histogram in point.outcome.iter().flat_map(|outcome| &outcome.histograms) {
            for (value, count) in &histogram.buckets {
                rows.push(at);
                names.push(histogram.name.clone());
                units.push(histogram.unit.clone());
                values.push(Some(*value as f64 / histogram.per_unit));
                counts.push(*count as i64);
            }
        }
    }
    let mut columns = coordinates(results, rows.iter().copied());
    columns.extend([
        Column { name: "histogram".into(), values: Values::Text(names) },
        Column { name: "unit".into(), values: Values::Text(units) },
        Column { name: "value".into(), values: Values::Figures(values) },
        Column { name: "count".into(), values: Values::Whole(counts) },
    ]);
    file(results, columns)
}

/// Returns columns with the number and the place of each row's point.
fn coordinates(results: &Results, rows: impl Iterator<Item = usize>) -> Vec<Column> {
    let rows: Vec<usize> = rows.collect();
    let numbers = rows.iter().map(|row| *row as i64).collect();
    let mut columns = vec![Column { name: "point".into(), values: Values::Whole(numbers) }];
    let names = results.points.iter().flat_map(|point| &point.coordinates).map(|one| &one.name);
    let count = results.points.first().map_or(0, |point| point.coordinates.len());
    for (at, name) in names.take(count).enumerate() {
        let value = |row: &usize| &results.points[*row].coordinates[at].value;
        let whole: Option<Vec<i64>> = rows.iter().map(|row| value(row).as_integer()).collect();
        let figures = || -> Option<Vec<Option<f64>>> {
            let number = |value: &Value| match value {
                Value::Integer(value) => Some(Some(*value as f64)),
                Value::Float(value) => Some(Some(*value)),
                _ => None,
            };
            rows.iter().map(|row| number(value(row))).collect()
        };
        let texts = || rows.iter().map(|row| results.points[*row].coordinates[at].text()).collect();
        let values = match whole {
            Some(whole) => Values::Whole(whole),
            None => figures().map_or_else(|| Values::Text(texts()), Values::Figures),
        };
        columns.push(Column { name: name.clone(), values });
    }
    columns
}

impl Column {
    fn field(&self) -> Result<Type> {
        let (physical, repetition, logical) = match self.values {
            Values::Whole(_) => (Physical::INT64, Repetition::REQUIRED, None),
            Values::Text(_) => {
                (Physical::BYTE_ARRAY, Repetition::REQUIRED, Some(LogicalType::String))
            }
            Values::Figures(_) => (Physical::DOUBLE, Repetition::OPTIONAL, None),
        };
        let field = Type::primitive_type_builder(&self.name, physical).with_repetition(repetition);
        field.with_logical_type(logical).build().with_context(|| format!("column {}", self.name))
    }

    fn write(&self, group: &mut SerializedRowGroupWriter<'_, Vec<u8>>) -> Result<()> {
        let mut column = group.next_column()?.context("a column too many")?;
        match &self.values {
            Values::Whole(values) => {
                column.typed::<Int64Type>().write_batch(values, None, None)?;
            }
            Values::Text(values) => {
                let values: Vec<ByteArray> =
                    values.iter().map(|value| ByteArray::from(&**value)).collect();
                column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
            }
            Values::Figures(values) => {
                let levels: Vec<i16> = values.iter().map(|value| value.is_some().into()).collect();
                let values: Vec<f64> = values.iter().flatten().copied().collect();
                column.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
            }
        }
        column.close().map_err(Into::into)
    }
}

fn file(results: &Results, columns: Vec<Column>) -> Result<Vec<u8>> {
    let fields: Vec<_> =
        columns.iter().map(|column| column.field().map(Arc::new)).collect::<Result<_>>()?;
    let schema = Type::group_type_builder("results").with_fields(fields).build()?;
    let about = [
        ("experiment", results.name.clone()),
        ("venice", results.version.clone()),
        ("seed", results.seed.to_string()),
    ];
    let about = about.map(|(key, value)| KeyValue::new(key.to_owned(), value)).to_vec();
    let properties = WriterProperties::builder().set_key_value_metadata(Some(about)).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    columns.iter().try_for_each(|column| column.write(&mut group))?;
    group.close()?;
    writer.into_inner().context("cannot write a Parquet file")
}
