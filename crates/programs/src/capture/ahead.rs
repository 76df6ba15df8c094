//! An XDP program of the interface: it sees frames before the kernel copies them.

use plimsoll_kernel::link::{self, AttachedProgram};

/// What is to be said of a program that hides frames from a capture in mode `copy`, if there is
/// one.
#[must_use]
pub fn program_ahead(interface: &str) -> Option<String> {
    let link = link::link(link::index(interface).ok()?).ok()?;
    Some(warning(interface, &link.xdp?))
}

fn warning(interface: &str, program: &AttachedProgram) -> String {
    format!(
        "{interface} has an XDP program ({program}): packets that it drops or takes are not recorded, and may count as refused by the filter"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_named() {
        let program = AttachedProgram {
            id: 7,
            name: Some("guard".to_owned()),
            mode: "native",
        };
        let said = warning("eth0", &program);
        assert!(said.starts_with("eth0 has an XDP program (`guard`, id 7, in native mode): "));
        assert_eq!(program_ahead("lo"), None);
        assert_eq!(program_ahead("nowhere"), None);
    }
}
