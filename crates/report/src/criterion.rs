//! What criterion stored: medians and runs per benchmark, for documents of our
//! own form.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use serde_json::{Value, json};

/// What criterion measured for one id, in ns per operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Criterion's estimate.
    pub median: f64,
    /// Every sample.
    pub runs: Vec<f64>,
}

/// What a bench `report` was asked for: criterion's folder, and the document to write, as in
/// `cargo bench --bench report -- CRITERION_DIR OUTPUT_JSON`.
#[derive(Debug)]
pub struct Asked {
    /// All measurements of the folder.
    pub measured: BTreeMap<String, Measurement>,
    output: PathBuf,
}

impl Asked {
    /// By this process's arguments. None under `cargo test`, which measures nothing.
    ///
    /// # Errors
    ///
    /// Other arguments, or a folder that [`collect`] cannot read.
    pub fn by_arguments() -> Result<Option<Self>, Box<dyn Error>> {
        if !env::args().any(|arg| arg == "--bench") {
            return Ok(None);
        }
        let paths: Vec<PathBuf> = env::args()
            .skip(1)
            .filter(|arg| !arg.starts_with("--"))
            .map(PathBuf::from)
            .collect();
        let [folder, output] = paths.as_slice() else {
            return Err("usage: report CRITERION_DIR OUTPUT_JSON".into());
        };
        Ok(Some(Self {
            measured: collect(folder)?,
            output: output.clone(),
        }))
    }

    /// Writes the document, and says where it is.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write(&self, document: &Value) -> io::Result<&Path> {
        if let Some(folder) = self.output.parent() {
            fs::create_dir_all(folder)?;
        }
        let text = serde_json::to_string_pretty(document)? + "\n";
        fs::write(&self.output, text)?;
        Ok(&self.output)
    }
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
