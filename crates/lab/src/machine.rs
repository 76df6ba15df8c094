//! The machine of an experiment's model: a built-in profile, or one from a file, as
//! `plimsoll lab calibrate` writes it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use plimsoll_sim::Profile;

use crate::error::Error;
use crate::experiment::Experiment;

/// Reads a machine profile from a file.
///
/// # Errors
///
/// The file cannot be read, or is no profile.
pub fn profile_file(file: &Path) -> Result<Arc<Profile>, Error> {
    let text = fs::read_to_string(file).map_err(|source| Error::Io {
        file: file.to_owned(),
        source,
    })?;
    let name = file.display().to_string();
    let profile = Profile::from_toml(&name, &text).map_err(|error| {
        let remedy = "let `plimsoll lab calibrate` write it, or correct it";
        Error::file(&name, "profile", error.to_string(), remedy)
    })?;
    Ok(Arc::new(profile))
}

impl Experiment {
    /// The same experiment on another machine. Curves that name a machine of their own keep
    /// it; without a model nothing changes.
    #[must_use]
    pub fn on(&self, profile: &Arc<Profile>) -> Self {
        let mut moved = self.clone();
        if !moved.profile.is_empty() {
            profile.name.clone_into(&mut moved.profile);
            moved.machine = Some(Arc::clone(profile));
        }
        if let Some(model) = &mut moved.model {
            profile.name.clone_into(&mut model.profile);
            moved.machine = Some(Arc::clone(profile));
        }
        moved
    }

    /// The profile of this name: the given one, or a built-in one.
    pub(crate) fn profile_named(&self, name: &str) -> Result<Profile, plimsoll_sim::Error> {
        match &self.machine {
            Some(given) if given.name == name => Ok((**given).clone()),
            _ => Profile::named(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::points;
    use crate::{Cache, Catalogue, Modelled};

    #[test]
    fn an_experiment_moves_to_a_machine_from_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("today.toml");
        let built_in = Profile::named("modern-veth").unwrap();
        let mut profile = built_in.clone();
        profile.name = "today".to_owned();
        profile.costs.get_mut("demux").unwrap().ns = 31_000;
        let text = toml::Table::try_from(&profile).unwrap().to_string();
        fs::write(&file, text).unwrap();
        let given = profile_file(&file).unwrap();
        let catalogue = Catalogue::built_in().unwrap();
        let experiment = catalogue.get("demo-udp").unwrap();
        let moved = experiment.on(&given);
        assert_eq!(moved.runs_on(), "profile today");
        assert_eq!(moved.profile_named("today").unwrap(), profile);
        assert_eq!(moved.profile_named("modern-veth").unwrap(), built_in);
        assert!(experiment.profile_named("today").is_err());
        let real = catalogue.get("real-st-table13").unwrap();
        assert_eq!(real.on(&given), *real);
    }

    #[test]
    fn results_are_kept_by_all_numbers_of_the_machine() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(&directory.path().join("results")).unwrap();
        let catalogue = Catalogue::built_in().unwrap();
        let experiment = catalogue.get("demo-udp").unwrap();
        let key = |demux_ns| {
            let mut profile = Profile::named("modern-veth").unwrap();
            profile.costs.get_mut("demux").unwrap().ns = demux_ns;
            let moved = experiment.on(&Arc::new(profile));
            let points = points(&moved, &moved.curves[0], 1).unwrap();
            cache.key(&Modelled, &points[0])
        };
        assert_eq!(key(30), key(30));
        assert_ne!(key(30), key(31), "the same name");
    }

    #[test]
    fn a_file_that_is_no_profile_is_named_with_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("today.toml");
        assert_eq!(profile_file(&file).unwrap_err().exit_code(), 1);
        fs::write(&file, "name = 'today'").unwrap();
        let error = profile_file(&file).unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains("today.toml"),
            "{error}"
        );
    }
}
