//! What criterion stored: medians and runs per benchmark, for documents of our
//! own form.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::{Value, json};

/// What criterion measured for one id, in ns per operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Criterion's estimate.
    pub median: f64,
    /// Every sample.
    pub runs: Vec<f64>,
}

/// Criterion's folder cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct Unreadable {
    /// Which file or folder.
    pub path: PathBuf,
    /// Why.
    pub problem: String,
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Unreadable {
    let path = path.to_owned();
    move |error| Unreadable {
        path,
        problem: error.to_string(),
    }
}

/// All measurements below criterion's `folder`, by their ids. Each is a folder
/// `new` with the files `benchmark.json` (who), `estimates.json` (median) and
/// `sample.json` (runs).
///
/// # Errors
///
/// A file cannot be read, or holds something else than criterion writes.
pub fn collect(folder: &Path) -> Result<BTreeMap<String, Measurement>, Unreadable> {
    let mut results = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(unreadable(folder))? {
        let path = entry.map_err(unreadable(folder))?.path();
        if !path.is_dir() {
            continue;
        }
        if path.ends_with("new") && path.join("benchmark.json").exists() {
            let (id, measurement) = read_measurement(&path)?;
            results.insert(id, measurement);
        } else {
            results.extend(collect(&path)?);
        }
    }
    Ok(results)
}

fn read_measurement(folder: &Path) -> Result<(String, Measurement), Unreadable> {
    let benchmark = read_json(&folder.join("benchmark.json"))?;
    let estimates = read_json(&folder.join("estimates.json"))?;
    let sample = read_json(&folder.join("sample.json"))?;
    parse(&benchmark, &estimates, &sample).ok_or_else(|| Unreadable {
        path: folder.to_owned(),
        problem: "not what criterion writes".to_owned(),
    })
}

fn parse(benchmark: &Value, estimates: &Value, sample: &Value) -> Option<(String, Measurement)> {
    // Criterion counts iterations; an iteration of several operations says so.
    let operations = benchmark["throughput"]["Elements"].as_f64().unwrap_or(1.0);
    let numbers = |key: &str| -> Option<Vec<f64>> {
        sample[key].as_array()?.iter().map(Value::as_f64).collect()
    };
    let (times, iterations) = (numbers("times")?, numbers("iters")?);
    let runs = times.iter().zip(&iterations);
    let measurement = Measurement {
        median: estimates["median"]["point_estimate"].as_f64()? / operations,
        runs: runs
            .map(|(time, iterations)| time / iterations / operations)
            .collect(),
    };
    Some((benchmark["full_id"].as_str()?.to_owned(), measurement))
}

fn read_json(path: &Path) -> Result<Value, Unreadable> {
    let text = fs::read_to_string(path).map_err(unreadable(path))?;
    serde_json::from_str(&text).map_err(|error| Unreadable {
        path: path.to_owned(),
        problem: error.to_string(),
    })
}

/// The measurements as the `results` of a document.
#[must_use]
pub fn results(measurements: &BTreeMap<String, Measurement>) -> Vec<Value> {
    measurements
        .iter()
        .map(|(id, m)| json!({"id": id, "median": m.median, "unit": "ns", "runs": m.runs}))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_per_operation() {
        let benchmark = json!({"full_id": "group/one", "throughput": {"Elements": 10}});
        let estimates = json!({"median": {"point_estimate": 500.0}});
        let sample = json!({"iters": [1.0, 2.0], "times": [400.0, 1200.0]});
        let (id, measured) = parse(&benchmark, &estimates, &sample).unwrap();
        assert_eq!((id.as_str(), measured.median), ("group/one", 50.0));
        assert_eq!(measured.runs, [40.0, 60.0]);
        assert!(parse(&benchmark, &json!({}), &sample).is_none());
    }
}
