//! Keys of a configuration: paths into nested tables, layers, and the error for an unknown one.

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::ExperimentError;

/// The key that chooses between alternatives: another choice drops the keys of the one before.
const CHOICE: &str = "kind";

/// Sets a key, and makes the tables on its way.
///
/// # Errors
/// If the key is no path, or a part of it is a value.
pub fn set(table: &mut Table, key: &str, value: Value) -> Result<(), ExperimentError> {
    check_path(key)?;
    let mut over = value;
    for part in key.rsplit('.') {
        over = Value::Table([(part.to_owned(), over)].into_iter().collect());
    }
    let Value::Table(over) = over else { return Ok(()) };
    if let Some(at) = value_on_path(table, key) {
        let why = format!("{at} is a value, not a table");
        return Err(ExperimentError::Key { key: key.to_owned(), why });
    }
    merge(table, over);
    Ok(())
}

/// Returns the value of a key.
pub fn get<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    let (tables, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut at = table;
    for part in tables.split('.').filter(|part| !part.is_empty()) {
        at = at.get(part)?.as_table()?;
    }
    at.get(last)
}

/// Lays `over` on `base`: values replace values, tables are merged.
pub fn merge(base: &mut Table, over: Table) {
    let chooses = over.get(CHOICE).is_some_and(|choice| base.get(CHOICE) != Some(choice));
    if chooses && base.contains_key(CHOICE) {
        base.clear();
    }
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

/// Returns all keys with values that are no tables, in order.
pub fn leaves(table: &Table) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    collect(table, "", &mut found);
    found
}

fn collect<'a>(table: &'a Table, prefix: &str, found: &mut Vec<(String, &'a Value)>) {
    for (key, value) in table {
        let path = format!("{prefix}{key}");
        match value {
            Value::Table(inner) if !inner.is_empty() => collect(inner, &format!("{path}."), found),
            value => found.push((path, value)),
        }
    }
}

/// Reads a configuration; returns it with all its keys, those that `table` does not set too.
///
/// # Errors
/// That name the key: an unknown one with its nearest, or one with a value of another kind.
pub fn read<C>(table: &Table) -> Result<(C, Table), ExperimentError>
where
    C: Default + Serialize + DeserializeOwned,
{
    let read = Value::Table(table.clone()).try_into::<C>();
    let config = read.map_err(|error| unreadable::<C>(table, &error))?;
    let all = Table::try_from(&config)
        .map_err(|error| ExperimentError::Config(format!("cannot be written: {error}")))?;
    match unknown(table, &all, "") {
        Some(key) => Err(unknown_key(&key, &all)),
        None => Ok((config, all)),
    }
}

/// Finds the key of an error. serde knows the way to it, but not into tables that differ by a choice:
/// there it is the key without which the rest can be read.
fn unreadable<C>(table: &Table, error: &toml::de::Error) -> ExperimentError
where
    C: Serialize + DeserializeOwned,
{
    let text = error.to_string();
    let (mut why, mut place) = (Vec::new(), Vec::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("in `").and_then(|line| line.strip_suffix('`')) {
            Some(part) => place.insert(0, part),
            None => why.push(line),
        }
    }
    let (why, place) = (why.join(" "), place.join("."));
    let repaired = leaves(table).into_iter().find_map(|(key, value)| {
        let mut rest = table.clone();
        remove(&mut rest, &key);
        let config = key.starts_with(&place).then(|| Value::Table(rest).try_into::<C>().ok())??;
        Some((key, value, config))
    });
    if why.starts_with("unknown field") {
        let all = repaired.as_ref().and_then(|(_, _, config)| Table::try_from(config).ok());
        let field = why.split('`').nth(1).unwrap_or_default();
        let key = if place.is_empty() { field.to_owned() } else { format!("{place}.{field}") };
        let key = repaired.map_or(key, |(key, ..)| key);
        return unknown_key(&key, &all.unwrap_or_default());
    }
    match repaired {
        Some((key, value, _)) => ExperimentError::Key { key, why: format!("{value}: {why}") },
        None if place.is_empty() => ExperimentError::Config(why),
        None => ExperimentError::Key { key: place, why },
    }
}

/// Removes a key that is there.
fn remove(table: &mut Table, key: &str) {
    match key.split_once('.') {
        Some((first, rest)) => {
            if let Some(Value::Table(inner)) = table.get_mut(first) {
                remove(inner, rest);
            }
        }
        None => drop(table.remove(key)),
    }
}

fn unknown_key(key: &str, all: &Table) -> ExperimentError {
    let known: Vec<String> = leaves(all).into_iter().map(|(key, _)| key).collect();
    let nearest = super::nearest(key, known.iter().map(String::as_str));
    ExperimentError::UnknownKey { key: key.to_owned(), nearest }
}

/// Returns the first key of `table` that `all` has not.
fn unknown(table: &Table, all: &Table, prefix: &str) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let path = format!("{prefix}{key}");
        match all.get(key) {
            None => Some(path),
            Some(known) => unknown_in(value, known, &path),
        }
    })
}

fn unknown_in(value: &Value, known: &Value, path: &str) -> Option<String> {
    match (value, known) {
        (Value::Table(table), Value::Table(all)) => unknown(table, all, &format!("{path}.")),
        (Value::Array(values), Value::Array(all)) => {
            values.iter().zip(all).find_map(|(value, known)| unknown_in(value, known, path))
        }
        _ => None,
    }
}

/// Reads the text of a value: TOML, or text without quotes.
pub fn value_of(text: &str) -> Value {
    let text = text.trim();
    let line = format!("value = {text}");
    let read = line.parse::<Table>().ok().filter(|table| table.len() == 1);
    read.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::from(text))
}

/// Formats a value as a reader would write it: text without quotes.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn check_path(key: &str) -> Result<(), ExperimentError> {
    let is_name = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    if key.split('.').all(is_name) {
        return Ok(());
    }
    let why = "not a key: write names with dots between them, for example switch.ports";
    Err(ExperimentError::Key { key: key.to_owned(), why: why.to_owned() })
}

/// Returns the part of a key that is a value where a table is needed.
fn value_on_path(table: &Table, key: &str) -> Option<String> {
    let ends = key.match_indices('.').map(|(at, _)| &key[..at]);
    let mut values = ends.filter(|part| get(table, part).is_some_and(|value| !value.is_table()));
    values.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Config {
        seed: u64,
        switch: Switch,
        queues: Vec<Switch>,
    }

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Switch {
        ports: u32,
        latency: String,
        limit: Option<u32>,
    }

    fn table(text: &str) -> Table {
        text.parse().unwrap()
    }

    fn error(text: &str) -> String {
        read::<Config>(&table(text)).unwrap_err().to_string()
    }

    #[test]
    fn layers_lie_on_each_other() {
        let mut base = table("seed = 1\n[switch]\nports = 4\nlatency = '1us'");
        merge(&mut base, table("[switch]\nports = 8"));
        set(&mut base, "switch.limit", value_of("7")).unwrap();
        set(&mut base, "seed", value_of("2")).unwrap();
        let (config, all) = read::<Config>(&base).unwrap();
        assert_eq!((config.seed, config.switch.ports, config.switch.limit), (2, 8, Some(7)));
        assert_eq!(get(&all, "switch.latency"), Some(&Value::from("1us")));
        let keys: Vec<_> = leaves(&all).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["queues", "seed", "switch.latency", "switch.limit", "switch.ports"]);
    }

    #[test]
    fn other_choice_drops_old_keys() {
        let mut base = table("[topology]\nkind = 'tree'\nracks = 64");
        merge(&mut base, table("[topology]\nkind = 'tree'"));
        assert!(get(&base, "topology.racks").is_some());
        set(&mut base, "topology.kind", "star".into()).unwrap();
        assert_eq!(base, table("[topology]\nkind = 'star'"));
    }

    #[test]
    fn errors_name_key() {
        assert_eq!(
            error("[switch]\nprots = 4"),
            "unknown key switch.prots: the nearest is switch.ports"
        );
        assert!(error("sede = 4").contains("unknown key sede: the nearest is seed"));
        assert!(error("[[queues]]\nports = 4\nprot = 1").contains("unknown key queues.prot"));
        let wrong = error("[switch]\nports = -1");
        assert!(wrong.starts_with("switch.ports: -1: invalid value"), "{wrong}");
        let wrong = error("[switch]\nports = 'many'");
        assert!(wrong.starts_with("switch.ports: \"many\": invalid type"), "{wrong}");
        let mut base = table("seed = 1");
        let wrong = set(&mut base, "seed.low", value_of("1")).unwrap_err().to_string();
        assert_eq!(wrong, "seed.low: seed is a value, not a table");
        for key in ["", ".", "a..b", "a b", "a=b"] {
            assert!(set(&mut base, key, value_of("1")).is_err(), "{key}");
        }
    }

    /// A configuration with a choice, below which serde does not know the way.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "kind", rename_all = "kebab-case")]
    enum Topology {
        Single(Ports),
        Tree { racks: Ports },
    }

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Ports {
        ports: u8,
        limit: u8,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct World {
        topology: Topology,
    }

    impl Default for World {
        fn default() -> Self {
            Self { topology: Topology::Single(Ports::default()) }
        }
    }

    #[test]
    fn errors_below_choice_name_key() {
        let error = |text: &str| read::<World>(&table(text)).unwrap_err().to_string();
        let tree = "[topology]\nkind = 'tree'\nracks.limit = 4\n";
        for (more, wanted) in [
            (
                "racks.prots = 1",
                "unknown key topology.racks.prots: the nearest is topology.racks.ports",
            ),
            (
                "racks.ports = 300",
                "topology.racks.ports: 300: invalid value: integer `300`, expected u8",
            ),
        ] {
            assert_eq!(error(&format!("{tree}{more}")), wanted);
        }
        let wrong = error("[topology]\nkind = 'ring'");
        assert!(wrong.starts_with("topology.kind: unknown variant `ring`"), "{wrong}");
        assert!(error("kind = 'tree'").starts_with("unknown key kind"));
    }

    #[test]
    fn values_need_no_quotes() {
        assert_eq!(value_of("7"), Value::from(7));
        assert_eq!(value_of("true"), Value::from(true));
        assert_eq!(value_of("[1, 2]"), Value::from(vec![1, 2]));
        assert_eq!(value_of("'1us'"), Value::from("1us"));
        assert_eq!(value_of("10Gbps"), Value::from("10Gbps"));
        assert_eq!(value_of("1\nother = 2"), Value::from("1\nother = 2"));
        assert_eq!(value_of(""), Value::from(""));
    }
}
