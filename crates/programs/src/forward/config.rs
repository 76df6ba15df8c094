//! Which settings make sense together.

use super::error::Error;
use super::{Config, DEVICES_MAX, DataPath};

impl Config {
    pub(super) fn validate(&self) -> Result<(), Error> {
        let names = &self.interfaces;
        if names.len() < 2 || names.len() > DEVICES_MAX {
            return Err(Error::usage(format!(
                "a router has 2 to {DEVICES_MAX} interfaces, not {}",
                names.len()
            )));
        }
        let twice = |(place, name): (usize, &String)| names[..place].contains(name);
        if let Some(name) = names.iter().enumerate().find(|named| twice(*named)) {
            return Err(Error::usage(format!("{} is given twice", name.1)));
        }
        if self.protected.is_some() && self.path == DataPath::Xdp {
            return Err(Error::usage(
                "protected traffic is for --path user: in the driver no packet waits for another",
            ));
        }
        if self.cpu.is_some() && !self.turns_settings() {
            return Err(Error::usage(
                "a CPU is for threads that poll (--cpu): give --cpu-limit as well, or take --path user",
            ));
        }
        Ok(())
    }

    pub(super) fn turns_settings(&self) -> bool {
        self.path == DataPath::User || self.cpu_limit.is_some()
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::config::Fraction;

    use super::*;

    #[test]
    fn a_router_has_different_interfaces() {
        let config = |names: &[&str]| Config {
            interfaces: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Config::default()
        };
        let problem = |names| config(names).validate().unwrap_err().to_string();
        assert!(problem(&["a"]).contains("2 to 64"));
        assert_eq!(problem(&["a", "b", "a"]), "a is given twice");
        config(&["a", "b"]).validate().unwrap();
        let protecting = Config {
            protected: Some("tcp port 22".to_owned()),
            ..config(&["a", "b"])
        };
        let problem = protecting.validate().unwrap_err().to_string();
        assert!(problem.contains("--path user"), "{problem}");
    }

    #[test]
    fn a_cpu_for_polling_needs_threads_that_poll() {
        let config = |path, cpu_limit| Config {
            interfaces: ["a", "b"].map(ToOwned::to_owned).to_vec(),
            path,
            cpu_limit,
            cpu: Some(0),
            ..Config::default()
        };
        let problem = config(DataPath::Xdp, None).validate().unwrap_err();
        assert!(problem.to_string().contains("--cpu-limit"), "{problem}");
        let limit = Some(Fraction::from_percent(75));
        config(DataPath::Xdp, limit).validate().unwrap();
        config(DataPath::User, None).validate().unwrap();
    }
}
