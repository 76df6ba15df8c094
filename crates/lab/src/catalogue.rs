//! The experiments at hand: those built in, or those of a directory.

use std::fs;
use std::path::Path;

use include_dir::{Dir, include_dir};

use crate::error::Error;
use crate::experiment::{Experiment, HostKind};

/// Asks for all experiments with a model.
const ALL: &str = "all";
/// Asks for all experiments on real packets alone.
const REAL: &str = "real";

/// `experiments/` as it was when this program was built, so that the report needs
/// nothing but the program.
static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../experiments");

/// All experiments, by id.
#[derive(Clone, Debug)]
pub struct Catalogue(Vec<Experiment>);

impl Catalogue {
    /// The experiments that are built in.
    ///
    /// # Errors
    ///
    /// One of the files is wrong: our own mistake, which the tests find.
    pub fn built_in() -> Result<Self, Error> {
        let files = BUILT_IN.files().filter_map(|file| {
            let name = file.path().file_name()?.to_str()?;
            Some((name.to_owned(), file.contents_utf8()?.to_owned()))
        });
        Self::parse(files.collect())
    }

    /// The `*.toml` files of a directory.
    ///
    /// # Errors
    ///
    /// The directory cannot be read, has no such file, or one of them is wrong.
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io {
            file: directory.to_owned(),
            source,
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(directory).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "toml")
            {
                let text = fs::read_to_string(&path).map_err(|source| Error::Io {
                    file: path.clone(),
                    source,
                })?;
                files.push((path.display().to_string(), text));
            }
        }
        if files.is_empty() {
            let remedy = "name a directory of experiment files (docs/lab.md)";
            let directory = directory.display().to_string();
            return Err(Error::file(&directory, "*.toml", "there is none", remedy));
        }
        Self::parse(files)
    }

    fn parse(mut files: Vec<(String, String)>) -> Result<Self, Error> {
        files.retain(|(name, _)| name.ends_with(".toml"));
        files.sort();
        let experiments = files
            .iter()
            .map(|(name, text)| Experiment::parse(name, text));
        Ok(Self(experiments.collect::<Result<_, _>>()?))
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Experiment] {
        &self.0
    }

    /// Those that have a model.
    #[must_use]
    pub fn modelled(&self) -> Vec<Experiment> {
        let modelled = |experiment: &&Experiment| experiment.host != HostKind::Real;
        self.0.iter().filter(modelled).cloned().collect()
    }

    /// The experiments of these ids, in the catalogue's order; `all` means all that
    /// have a model, `real` all that are on real packets alone.
    ///
    /// # Errors
    ///
    /// One of them does not exist, or means none.
    pub fn select(&self, ids: &[String]) -> Result<Vec<Experiment>, Error> {
        for id in ids.iter().filter(|id| *id != ALL && *id != REAL) {
            self.get(id)?;
        }
        let is_named = |experiment: &Experiment, id: &str| {
            let group = match experiment.host {
                HostKind::Real => REAL,
                HostKind::Modelled | HostKind::Testbed => ALL,
            };
            id == group || id == experiment.id
        };
        let means_none = |id: &&String| !self.0.iter().any(|one| is_named(one, id));
        if let Some(group) = ids.iter().find(means_none) {
            return Err(Error::Empty {
                group: group.clone(),
                remedy: format!("use one of {}", self.ids()),
            });
        }
        let is_meant = |one: &&Experiment| ids.iter().any(|id| is_named(one, id));
        Ok(self.0.iter().filter(is_meant).cloned().collect())
    }

    /// The experiment of this id.
    ///
    /// # Errors
    ///
    /// It does not exist; the error lists those that sound like it, or all.
    pub fn get(&self, id: &str) -> Result<&Experiment, Error> {
        let found = self.0.iter().find(|experiment| experiment.id == id);
        found.ok_or_else(|| Error::Unknown {
            what: "experiment",
            given: id.to_owned(),
            remedy: format!("use one of {}", self.ids()),
        })
    }

    fn ids(&self) -> String {
        let ids: Vec<&str> = self.0.iter().map(|one| one.id.as_str()).collect();
        ids.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_id_is_answered_with_those_that_exist() {
        let catalogue = Catalogue::built_in().unwrap();
        let error = catalogue.select(&["nonsense".to_owned()]).unwrap_err();
        let first = &catalogue.all()[0].id;
        assert!(error.is_usage() && error.to_string().contains(first.as_str()));
        let number = |ids: &[&str]| {
            let ids: Vec<String> = ids.iter().map(|&id| id.to_owned()).collect();
            catalogue.select(&ids).unwrap().len()
        };
        assert_eq!(number(&["all"]), catalogue.modelled().len());
        assert!(number(&["real"]) > 0 && number(&["all"]) > 0);
        assert_eq!(number(&["all", "real"]), catalogue.all().len());
        assert_eq!(
            catalogue.select(std::slice::from_ref(first)).unwrap().len(),
            1
        );
    }

    /// A run of nothing would look like one that went well.
    #[test]
    fn what_means_no_experiment_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("notes.txt"), "none").unwrap();
        let error = Catalogue::read(directory.path()).unwrap_err();
        let said = error.to_string();
        assert!(
            error.is_usage() && said.contains("*.toml: there is none"),
            "{said}"
        );
        for kept in [HostKind::Modelled, HostKind::Real] {
            let mut catalogue = Catalogue::built_in().unwrap();
            catalogue.0.retain(|one| one.host == kept);
            let (group, other) = match kept {
                HostKind::Real => (REAL, ALL),
                HostKind::Modelled | HostKind::Testbed => (ALL, REAL),
            };
            assert!(!catalogue.select(&[group.to_owned()]).unwrap().is_empty());
            for ids in [&[other][..], &[group, other]] {
                let ids: Vec<String> = ids.iter().map(|&id| id.to_owned()).collect();
                let error = catalogue.select(&ids).unwrap_err();
                let said = error.to_string();
                let start = format!("no experiment is meant by {other:?}; use one of ");
                assert!(error.is_usage() && said.starts_with(&start), "{said}");
            }
        }
    }

    #[test]
    fn a_directory_with_a_wrong_file_says_which() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(
            directory.path().join("odd.toml"),
            "id = \"odd\"\ntitel = \"x\"",
        )
        .unwrap();
        let error = Catalogue::read(directory.path()).unwrap_err().to_string();
        assert!(error.contains("odd.toml: titel: unknown field"), "{error}");
        assert!(Catalogue::read(&directory.path().join("none")).is_err());
    }
}
