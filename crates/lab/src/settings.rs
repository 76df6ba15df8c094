//! Settings of a scenario: one laid over another, and single ones by dotted keys.

use toml::{Table, Value};

/// Lays `upper` over `lower`.
pub(crate) fn overlay(lower: &mut Table, upper: &Table) -> Result<(), String> {
    for (key, value) in upper {
        match (lower.get_mut(key), value) {
            (Some(Value::Table(below)), Value::Table(above)) if !above.contains_key("kind") => {
                overlay(below, above)?;
            }
            // Elements by name, as in a dotted key.
            (Some(Value::Array(list)), Value::Table(above)) => {
                for (name, value) in above {
                    overlay_element(element(list, name)?, value)?;
                }
            }
            _ => set(lower, key, value.clone())?,
        }
    }
    Ok(())
}

fn overlay_element(below: &mut Value, value: &Value) -> Result<(), String> {
    match (below, value) {
        (Value::Table(below), Value::Table(above)) if !above.contains_key("kind") => {
            overlay(below, above)
        }
        (below, whole) => {
            *below = whole.clone();
            Ok(())
        }
    }
}

/// Sets one dotted key. Tables on the way are made, list elements must exist.
pub(crate) fn set(settings: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let (first, rest) = key.split_once('.').unwrap_or((key, ""));
    if rest.is_empty() {
        settings.insert(first.to_owned(), value);
        return Ok(());
    }
    let below = settings
        .entry(first)
        .or_insert_with(|| Value::Table(Table::new()));
    set_below(below, rest, value)
}

fn set_below(below: &mut Value, key: &str, value: Value) -> Result<(), String> {
    match below {
        Value::Table(table) => set(table, key, value),
        Value::Array(list) => {
            let (name, rest) = key.split_once('.').unwrap_or((key, ""));
            let element = element(list, name)?;
            if rest.is_empty() {
                *element = value;
                return Ok(());
            }
            set_below(element, rest, value)
        }
        other => Err(format!(
            "{key:?} cannot be set inside a {}",
            other.type_str()
        )),
    }
}

/// The element with this `name`, or else with this number.
fn element<'a>(list: &'a mut [Value], name: &str) -> Result<&'a mut Value, String> {
    let named = |value: &Value| value.get("name").and_then(Value::as_str) == Some(name);
    let index = list.iter().position(named).or_else(|| name.parse().ok());
    let length = list.len();
    index
        .and_then(|index| list.get_mut(index))
        .ok_or_else(|| format!("the list of {length} has no element {name:?}"))
}

/// A whole number where it is one, as TOML distinguishes them.
pub(crate) fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        Value::Integer(value as i64)
    } else {
        Value::Float(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_with_a_kind_replaces_and_any_other_is_merged() {
        let mut lower: Table =
            toml::from_str("load = { rate = 1, size = 2 }\npath = { kind = 'bsd', queue = 50 }")
                .unwrap();
        let upper = toml::from_str("load.rate = 3\npath = { kind = 'lrp' }").unwrap();
        overlay(&mut lower, &upper).unwrap();
        let wanted: Table =
            toml::from_str("load = { rate = 3, size = 2 }\npath = { kind = 'lrp' }").unwrap();
        assert_eq!(lower, wanted);
    }

    #[test]
    fn a_table_laid_over_a_list_reaches_its_elements_by_name() {
        let mut lower: Table =
            toml::from_str("load = [{ name = 'a', how = { rate = 1, size = 2 } }, { name = 'b' }]")
                .unwrap();
        overlay(&mut lower, &toml::from_str("load.a.how.rate = 7").unwrap()).unwrap();
        let wanted: Table =
            toml::from_str("load = [{ name = 'a', how = { rate = 7, size = 2 } }, { name = 'b' }]")
                .unwrap();
        assert_eq!(lower, wanted);
        let unknown = toml::from_str("load.c.rate = 7").unwrap();
        assert!(overlay(&mut lower, &unknown).is_err());
    }

    #[test]
    fn dotted_keys_reach_into_tables_and_lists() {
        let text = "source = [{ name = 'a', rate = 1 }, { name = 'b', rate = 2 }]";
        let mut settings: Table = toml::from_str(text).unwrap();
        set(&mut settings, "source.b.rate", number(7.0)).unwrap();
        set(&mut settings, "source.0.rate", number(8.0)).unwrap();
        set(&mut settings, "path.quota", number(0.5)).unwrap();
        assert_eq!(settings["source"][0]["rate"].as_integer(), Some(8));
        assert_eq!(settings["source"][1]["rate"].as_integer(), Some(7));
        assert_eq!(settings["path"]["quota"].as_float(), Some(0.5));
        let problem = set(&mut settings, "source.2.rate", number(1.0)).unwrap_err();
        assert!(problem.contains("no element \"2\""), "{problem}");
        let problem = set(&mut settings, "path.quota.x", number(1.0)).unwrap_err();
        assert!(problem.contains("inside a float"), "{problem}");
    }
}
