//! The kept list of mutations, `mutations.toml`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::named_test;

/// A small change for the worse, and the test that has to notice it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutation {
    /// The folder of the crate that is broken.
    #[serde(default = "core")]
    pub(crate) folder: String,
    /// The module of it.
    pub(crate) module: String,
    /// What goes wrong with it.
    pub(crate) why: String,
    /// The file to change, as seen from the crate's folder.
    pub(crate) file: PathBuf,
    /// The text to replace, which occurs once in the file.
    pub(crate) from: String,
    /// What takes its place.
    pub(crate) to: String,
    /// The test that must fail then, as [`named_test`] knows it.
    pub(crate) test: String,
}

/// Most are of core.
pub(crate) const CORE: &str = "core";

fn core() -> String {
    CORE.to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutation: Vec<Mutation>,
}

/// The folder of all crates.
pub(crate) fn crates() -> &'static Path {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    core.parent().expect("core is one of the crates")
}

/// All mutations, in the order of the file.
pub(crate) fn read() -> Vec<Mutation> {
    let text = include_str!("../../../mutations.toml");
    let list: List = toml::from_str(text).unwrap_or_else(|why| panic!("mutations.toml: {why}"));
    list.mutation
}

impl Mutation {
    /// The text of the file, changed. The error says why it cannot be.
    pub(crate) fn apply(&self, source: &str) -> Result<String, String> {
        let found = source.matches(&self.from).count();
        if found != 1 {
            return Err(format!("`from` occurs {found} times: {:?}", self.from));
        }
        if self.from == self.to {
            return Err(format!("changes nothing: {:?}", self.from));
        }
        Ok(source.replacen(&self.from, &self.to, 1))
    }

    /// Whether the entry still fits the sources.
    pub(crate) fn check(&self) -> Result<(), String> {
        let label = |why: String| format!("{} ({}): {why}", self.module, self.why);
        let prefix = Path::new("src").join(&self.module);
        if !self.file.with_extension("").starts_with(prefix) {
            let file = self.file.display();
            return Err(label(format!("{file} is not a file of the module")));
        }
        let source = fs::read_to_string(crates().join(&self.folder).join(&self.file));
        let source = source.map_err(|why| label(format!("{}: {why}", self.file.display())))?;
        self.apply(&source).map_err(label)?;
        named_test::find(crates(), &self.test)
            .map(drop)
            .map_err(label)
    }
}
